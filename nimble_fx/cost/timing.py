"""How long a task takes on the device that is there: its operator, called over and over.

In a model a task finds in the caches what another task has just written, though not in the nearest
one; a parameter was last read a whole call of the model ago. So it is here: the calls go round
copies of their arguments. With all of them warm, a stack of LSTMs came out at 0.59 of its time on a
CPU.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from nimble_fx.devices import Device
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir import Ref, ScalarType, Task, TaskGraph, TensorType, TupleType, Type
from nimble_fx.sizes import number, numbers

MAX_COLD_NBYTES = 64 << 20
"""More than a cache holds: a processor's third level (32 MiB and up), a GPU's second (50 MB)."""

_aten = torch.ops.aten
_EMBEDDINGS = {_aten.embedding, _aten._embedding_bag, _aten._embedding_bag_forward_only}

WARM_NBYTES = 4 << 20
"""More than a core's own cache holds, less than all cores share."""

MAX_COPIES = 64
"""Past that, parameters are so small that a cold one costs no more than a call."""


def task_seconds(
    task: Task, values: Mapping[str, Any], cold: Mapping[str, int], device: Device
) -> float:
    """What a task takes, in seconds. What it writes of its arguments are copies.

    Args:
        task: one that launches.
        values: what its arguments stand for, by name.
        cold: see `cold_values`.
        device: where.

    Raises:
        Exception: whatever the operator raises with these arguments.
    """
    parameters = {name: values[name] for name in task.uses if name in cold}
    others = {name: values[name] for name in task.uses if name not in cold}
    far = _copies(task, parameters, max(cold.values(), default=0))
    near = _copies(task, others, WARM_NBYTES)
    for each in near[1:]:
        _look_elsewhere(task, parameters | others | each)
    turns = range(len(far) * ceil(len(near) / len(far)))  # whole rounds of the parameters
    return device.seconds([_call(task, far[i % len(far)] | near[i % len(near)]) for i in turns])


def synthetic(task: Task, types: Mapping[str, Type | None]) -> dict[str, Any]:
    """Values for a task's arguments, of their shapes, strides and types.

    Floating-point ones are random. Integers are zeros, which as indices are in range, but for the
    rows that an embedding looks up: these are all over its table, and alike many for each bag.

    Raises:
        UnsupportedError: nothing is known of an argument, or a size is symbolic.
    """
    values = {name: _made(types[name]) for name in task.uses}
    _look_elsewhere(task, values)
    for offsets in _of_embedding(task, values)[2:3]:
        n_indices, n_bags = _of_embedding(task, values)[1].numel(), max(1, offsets.numel())
        offsets.copy_(torch.arange(offsets.numel()) * n_indices // n_bags)
    return values


def _look_elsewhere(task: Task, values: Mapping[str, Any]) -> None:
    """If it is an embedding, it looks up other rows, all over its table."""
    for indices in _of_embedding(task, values)[1:2]:
        indices.random_(_of_embedding(task, values)[0].shape[0])


def _of_embedding(task: Task, values: Mapping[str, Any]) -> list[Tensor]:
    """The table, indices and offsets of an embedding; nothing of another task."""
    if getattr(task.target, "overloadpacket", None) not in _EMBEDDINGS:
        return []
    return [values[arg.name] for arg in task.args if isinstance(arg, Ref)]


def cold_values(graph: TaskGraph) -> dict[str, int]:
    """The values that are cold when they are read: parameters, constants, and views of these.

    Each with the bytes that are read between two reads of it: those of all parameters, rounded up
    to three binary digits, and no more than caches hold.
    """
    given = [value for value in graph.inputs if value.static] + list(graph.constants)
    static = {storage for value in given for storage in value.holds}
    types = (value.type for value in given)
    total = sum(
        prod(numbers(each.shape)) * each.dtype.itemsize
        for each in types
        if isinstance(each, TensorType)
    )
    step = 1 << max(total.bit_length() - 3, 0)
    nbytes = min(MAX_COLD_NBYTES, step * ceil(total / step))
    cold = (v.name for v in graph.values if v.holds and static.issuperset(v.holds))
    return dict.fromkeys(cold, nbytes)


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


def _copies(task: Task, values: Mapping[str, Any], nbytes: int) -> list[dict[str, Any]]:
    """As many copies of some of its arguments as have so many bytes; zeros of what it writes.

    Written over and over, other numbers soon become so small that a CPU is slow with them.
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


def _made(value: Type | None) -> Any:
    match value:
        case TensorType(shape, stride, dtype, device):
            lengths, steps = numbers(shape), numbers(stride)
            extent = 1 + sum((n - 1) * step for n, step in zip(lengths, steps, strict=True))
            memory = torch.zeros(0 if 0 in lengths else extent, dtype=dtype, device=device)
            if dtype.is_floating_point or dtype.is_complex:
                memory.normal_()
            return memory.as_strided(lengths, steps)
        case ScalarType(expression):
            return number(expression, {})
        case TupleType(items):
            return tuple(_made(item) for item in items)
    raise UnsupportedError("nothing is known of an argument")
