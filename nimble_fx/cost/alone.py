"""How long a task takes by itself on a device that is there: its operator, over and over.

In a model a task finds in the caches what another task has just written, though not in the nearest
one; a parameter was last read a whole call of the model ago. So it is here: the calls go round
copies of their arguments.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor

from nimble_fx.cost.arguments import filled
from nimble_fx.cost.synthetic import rows_elsewhere
from nimble_fx.devices import DeviceRuntime
from nimble_fx.ir.operators import runtime_function
from nimble_fx.ir.task_graph import Ref, Task
from nimble_fx.torch_internals.names import pytree

WARM_NBYTES = 4 << 20
"""More than the cache of one processor holds, less than all of them share."""

MAX_COPIES = 64
"""Past that, parameters are so small that a cold one costs no more than a call."""


def task_seconds(
    task: Task, values: Mapping[str, Any], cold: Mapping[str, int], device: DeviceRuntime
) -> float:
    """What a task takes, in seconds. What it writes of its arguments are copies.

    Args:
        task: one that launches.
        values: what its arguments stand for, by name.
        cold: see `cold.cold_values`.
        device: where.

    Raises:
        Exception: whatever the operator raises with these arguments.
    """
    parameters = {name: values[name] for name in task.uses if name in cold}
    others = {name: values[name] for name in task.uses if name not in cold}
    far = _copies(task, parameters, max(cold.values(), default=0))
    near = _copies(task, others, WARM_NBYTES)
    for each in near:
        each |= rows_elsewhere(task, parameters | each)
    turns = range(len(far) * ceil(len(near) / len(far)))  # whole rounds of the parameters
    return device.seconds([_call(task, far[i % len(far)] | near[i % len(near)]) for i in turns])


def _call(task: Task, values: Mapping[str, Any]) -> Callable[[], object]:
    args, kwargs = filled(task.args, values), filled(dict(task.kwargs), values)
    return partial(runtime_function(task.target), *args, **kwargs)


def _copies(task: Task, values: Mapping[str, Any], nbytes: int) -> list[dict[str, Any]]:
    """As many copies of some of its arguments as have so many bytes; zeros of what it writes.

    However often these are written, an operator makes of them what it made the first time.
    """
    written = set(_written(task))
    held = sum(x.nbytes for value in values.values() for x in _tensors(value))
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


def _written(task: Task) -> Iterator[str]:
    """The values that the operator's schema says it writes."""
    schema = getattr(task.target, "_schema", None)
    for argument, parameter in zip(task.args, schema.arguments if schema else (), strict=False):
        alias = parameter.alias_info
        if isinstance(argument, Ref) and alias is not None and alias.is_write:
            yield argument.name


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
