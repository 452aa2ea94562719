"""How long a task takes on the device that is there: its operator, called over and over.

What a task is given by another task was written a moment ago and is in the caches; a parameter was
last read a whole call of the model ago and is not. So it is here: the calls go round copies of the
parameters. Where that was left out, a stack of LSTMs came out at 0.59 of what it takes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from nimble_fx.cost.work import Sizes, number
from nimble_fx.devices import Device
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir import Ref, ScalarType, Task, TaskGraph, TensorType, TupleType, Type

COLD_NBYTES = 64 << 20
"""More than a cache holds: a processor's third level (32 MiB and up), a GPU's second (50 MB)."""

MAX_COPIES = 64
"""Past that, parameters are so small that a cold one costs no more than a call."""


def task_seconds(
    task: Task, values: Mapping[str, Any], parameters: Collection[str], device: Device
) -> float:
    """What a task takes, in seconds.

    What it writes of its arguments are copies.

    Args:
        task: one that launches.
        values: what its arguments stand for, by name.
        parameters: the names of those that hold the model's parameters.
        device: where.

    Raises:
        Exception: whatever the operator raises with these arguments.
    """
    cold = [name for name in task.uses if name in parameters]
    nbytes = sum(x.nbytes for name in cold for x in _tensors(values[name]))
    n_copies = max(1, min(MAX_COPIES, ceil(COLD_NBYTES / nbytes))) if nbytes else 1
    copied = cold if set(task.writes) <= set(task.allocates) else task.uses
    calls = [_call(task, {**values, **_copies(values, copied)}) for _ in range(n_copies)]
    return device.seconds(calls)


def synthetic(task: Task, types: Mapping[str, Type | None], sizes: Sizes) -> dict[str, Any]:
    """Values for a task's arguments, of their shapes, strides and types.

    Floating-point ones are random, others zeros, which as indices are in range.

    Raises:
        UnsupportedError: nothing is known of an argument, or a size depends on a symbol that
            `sizes` does not have.
    """
    return {name: _made(types[name], sizes) for name in task.uses}


def parameters_of(graph: TaskGraph) -> frozenset[str]:
    """The values that are parameters, buffers and constants, and views of these."""
    static = {storage for value in graph.inputs if value.static for storage in value.holds}
    static |= {storage for value in graph.constants for storage in value.holds}
    return frozenset(v.name for v in graph.values if v.holds and static.issuperset(v.holds))


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Within, operators run as they are, whoever is tracing; random draws are undone."""
    on_gpu = device.type != "cpu"
    devices = [device.index or 0] if on_gpu else []
    forked = torch.random.fork_rng(devices, device_type=device.type if on_gpu else "cuda")
    with _disable_current_modes(), torch.no_grad(), forked:
        yield


def _call(task: Task, values: Mapping[str, Any]) -> Callable[[], object]:
    arguments = (task.args, dict(task.kwargs))
    args, kwargs = pytree.tree_map_only(Ref, lambda ref: values[ref.name], arguments)
    target = getattr(task.target, "op", task.target)  # as emitted modules call it
    return partial(target, *args, **kwargs)


def _copies(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: pytree.tree_map_only(Tensor, torch.clone, values[name]) for name in names}


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _made(value: Type | None, sizes: Sizes) -> Any:
    match value:
        case TensorType(shape, stride, dtype, device):
            lengths, steps = ([number(size, sizes) for size in each] for each in (shape, stride))
            extent = 1 + sum((n - 1) * step for n, step in zip(lengths, steps, strict=True))
            memory = torch.zeros(0 if 0 in lengths else extent, dtype=dtype, device=device)
            if dtype.is_floating_point or dtype.is_complex:
                memory.normal_()
            return memory.as_strided(lengths, steps)
        case ScalarType(expression):
            return number(expression, sizes)
        case TupleType(items):
            return tuple(_made(item, sizes) for item in items)
    raise UnsupportedError("nothing is known of an argument")
