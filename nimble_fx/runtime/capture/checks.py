"""Checks whether a program can be captured, from its graph and its device."""

from collections.abc import Callable, Mapping
from math import prod
from typing import cast

import torch

from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.size_polynomials import are_equal
from nimble_fx.ir.symbolic_sizes import extent, symbols_in
from nimble_fx.ir.task_graph import Arg, Input, Task, TaskGraph, ref_names
from nimble_fx.ir.types import Size, TensorType
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import arguments_by_name, copies_whole_storage

_aten = torch.ops.aten

_SYNCHRONIZING_TAGS = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.cudagraph_unsafe,
}
_READ_BY_HOST = {
    _aten._linalg_check_errors.default,
    _aten.masked_fill.Tensor,
    _aten.masked_fill_.Tensor,
}
"""Operators that wait for the device although they have none of these tags."""

_TAKE_MASKS = {
    *(_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten._unsafe_index_put.default),
    *(_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default),
}
"""Operators that wait for the device if an index is a mask, because they count its elements."""

_MASK_DTYPES = {torch.bool, torch.uint8}
"""The dtypes of indices that are masks."""

_READS_STORAGE = {
    _aten.as_strided.default,
    _aten.as_strided_copy.default,
    _aten.as_strided_scatter.default,
}


_MAX_COMPARED = 2**26
"""The most elements of memory, or of a view, of which a check compares each one's address."""

NOT_FROZEN = "freeze=False"
"""The reason not to capture a program of a user who does not want it."""


def why_not_captured(
    graph: TaskGraph,
    device: DeviceRuntime,
    report: Callable[[UnsupportedError], None] = lambda _: None,
) -> str | None:
    """The reason not to capture a graph on a device; None if a capture is possible and pays off.

    Args:
        graph: a traced or scheduled graph.
        device: the device to capture it on.
        report: called with the error if an operator in the graph, or the device's settings, rule
            out a capture; not called if a capture would gain nothing.
    """
    if not device.has_graphs:
        return f"{device.name} has no CUDA graphs"
    if not graph.launching:
        return "it launches nothing"
    try:
        if device.why_not_capture is not None:
            raise UnsupportedError(device.why_not_capture)
        check_capturable(graph)
    except UnsupportedError as error:
        report(error)
        return str(error)
    return None


def check_capturable(graph: TaskGraph) -> None:
    """Checks that the graph has no operator that no device can capture.

    Raises:
        UnsupportedError: it has an operator that synchronizes with the device, or whose result's
            size depends on data; or one that may read memory around an input, which the copy that
            a capture reads does not have.
    """
    copied = {s for value in graph.inputs if not value.static for s in value.holds}
    gaps = {s for value in graph.inputs if not _is_dense(value) for s in value.holds}
    values = {value.name: value for value in graph.values}
    for task in graph.tasks:
        if copies_whole_storage(task.target):
            of = set(values[ref_names(_argument(task, "self"))[0]].holds)
            copied |= set(task.allocates) if copied & of else set()
            gaps |= set(task.allocates) if gaps & of else set()
        if _synchronizes(task, values):
            why = about_task(task, "cannot be captured: the host waits for its result")
            raise UnsupportedError(why, task.name, task.source)
        if task.target in _READS_STORAGE:
            seen = copied.intersection(values[ref_names(_argument(task, "self"))[0]].holds)
            has_offset = _argument(task, "storage_offset") is not None  # from the storage's start
            is_in_gaps = not gaps.isdisjoint(seen) and not _reads_own(task, values)
            if (seen and has_offset) or is_in_gaps:
                what = (
                    "cannot be captured: it may look at the memory around an input (PyTorch adds "
                    "such calls where arguments overlap and one is written)"
                )
                raise UnsupportedError(about_task(task, what), task.name, task.source)


def _reads_own(task: Task, values: Mapping[str, Input | Task]) -> bool:
    """Whether `as_strided` without an offset reads only elements of its argument, not its gaps.

    False if that is not known, because a size is symbolic or there are too many elements.
    """
    of = values[ref_names(_argument(task, "self"))[0]].type
    size, stride = _argument(task, "size"), _argument(task, "stride")
    if not isinstance(of, TensorType) or symbols_in(of) or ref_names((size, stride)):
        return False
    shape, strides = cast(tuple[int, ...], of.shape), cast(tuple[int, ...], of.stride)
    steps = list(zip(cast(tuple[int, ...], size), cast(tuple[int, ...], stride), strict=True))
    read = [min(n, 1) if step == 0 else n for n, step in steps], [step for _, step in steps]
    if max(extent(shape, strides), prod(read[0])) > _MAX_COMPARED:
        return False
    with plain_eager_mode():  # a compile has fake tensors
        own = torch.zeros(extent(shape, strides), dtype=torch.bool, device="cpu")
        own.as_strided(shape, strides).fill_(True)
        return extent(*read) <= len(own) and bool(own.as_strided(*read).all())


def _synchronizes(task: Task, values: Mapping[str, Input | Task]) -> bool:
    """Whether the host waits for an operator's result."""
    if task.target in _TAKE_MASKS:
        types = [values[name].type for name in ref_names(_argument(task, "indices"))]
        return any(isinstance(t, TensorType) and t.dtype in _MASK_DTYPES for t in types)
    has_tag = not _SYNCHRONIZING_TAGS.isdisjoint(getattr(task.target, "tags", ()))
    return has_tag or task.target in _READ_BY_HOST


def about_task(task: Task, what: str) -> str:
    """A sentence about a task, with its operator and the user's line."""
    source = task.source
    line = f"{source}: {source.code}" if source else "no line of the model is recorded for it"
    return f"{task.name} ({task.target}): {what} [{line}]"


def _argument(task: Task, name: str) -> Arg:
    """An argument of a task that calls an operator, by its name in the schema; None if left out."""
    op = cast(OpOverload, task.target)
    return arguments_by_name(op, task.args, dict(task.kwargs)).get(name)


def _is_dense(value: Input) -> bool:
    """Whether its elements fill the memory from the first to the last without gaps.

    False if symbolic sizes do not prove it.
    """
    if not isinstance(value.type, TensorType):
        return True
    pairs = zip(value.type.shape, value.type.stride, strict=True)
    left = [pair for pair in pairs if pair[0] != 1]
    expected: Size = 1
    while left:
        following = [pair for pair in left if are_equal(pair[1], expected)]
        if not following:
            return False
        left.remove(following[0])
        expected = f"({expected}) * ({following[0][0]})"
    return True
