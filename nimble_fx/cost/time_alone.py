"""Measures the time of a single task on a device of this machine, by calling it repeatedly.

In a model, a task finds recent results in a cache, though not in the nearest one; a parameter was
last read a whole call of the model ago. To have the same state of the caches, the calls cycle
through copies of their arguments.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor

from nimble_fx.cost.arguments import with_values
from nimble_fx.cost.synthetic import check_runs, random_rows
from nimble_fx.devices import DeviceRuntime
from nimble_fx.ir.operators import runtime_function
from nimble_fx.ir.task_graph import Task
from nimble_fx.ir.written_inputs import written_arguments
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import pytree

WARM_NBYTES = 4 << 20
"""More than the cache of one core, less than the shared cache."""

MAX_COPIES = 64
"""Parameters that need more copies are so small that a cold read costs less than a call."""


def task_seconds(
    task: Task, values: Mapping[str, Any], cold: Mapping[str, int], device: DeviceRuntime
) -> float:
    """The time of a task, in seconds; it writes only to copies of its arguments.

    Args:
        task: a launching task.
        values: the values of its arguments, by name.
        cold: see `cold_values.cold_values`.
        device: the device that runs it.

    Raises:
        Exception: any error of the operator with these arguments.
    """
    check_runs(task, tensors_in(list(values.values())))
    parameters = {name: values[name] for name in task.uses if name in cold}
    others = {name: values[name] for name in task.uses if name not in cold}
    far = _copies(task, parameters, max(cold.values(), default=0))
    near = _copies(task, others, WARM_NBYTES)
    for each in near:
        each |= random_rows(task, parameters | each)
    turns = range(len(far) * ceil(len(near) / len(far)))  # a multiple of the parameters' copies
    return device.seconds([_call(task, far[i % len(far)] | near[i % len(near)]) for i in turns])


def _call(task: Task, values: Mapping[str, Any]) -> Callable[[], object]:
    args, kwargs = with_values(task.args, values), with_values(dict(task.kwargs), values)
    return partial(runtime_function(task.target), *args, **kwargs)


def _copies(task: Task, values: Mapping[str, Any], nbytes: int) -> list[dict[str, Any]]:
    """Copies of some of its arguments, `nbytes` in all; zeros for those that it writes.

    Zeros stay in range however often an operator updates them.
    """
    written = set(written_arguments(task))
    held = sum(x.nbytes for value in values.values() for x in tensors_in(value))
    n_copies = max(1, min(MAX_COPIES, ceil(nbytes / held))) if held else 1
    return [
        {
            name: pytree.tree_map_only(
                Tensor, torch.zeros_like if name in written else torch.clone, value
            )
            for name, value in values.items()
        }
        for _ in range(n_copies)
    ]
