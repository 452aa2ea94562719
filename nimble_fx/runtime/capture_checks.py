"""What keeps a program from being captured, as far as its graph and its device tell."""

from collections.abc import Callable, Mapping

import torch

from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import numbers
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph, TensorType, ref_names

_aten = torch.ops.aten

_WAITS_FOR_THE_DEVICE = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.cudagraph_unsafe,
}
_MASKS = {torch.bool, torch.uint8}
"""Element types of indices that say of each element whether it is taken."""

_LOOKS_AT_THE_STORAGE = {
    _aten.as_strided.default,
    _aten.as_strided_.default,
    _aten.as_strided_copy.default,
    _aten.as_strided_scatter.default,
}
_PLACE_OF_OFFSET = 3
"""Which argument of these is the offset, from the beginning of the storage if it is given."""


def why_not_captured(
    graph: TaskGraph,
    device: DeviceRuntime,
    report: Callable[[UnsupportedError], None] = lambda _: None,
) -> str | None:
    """The reason why a graph is not captured on a device; None if it can be, and gains by it.

    Args:
        graph: traced, or scheduled.
        device: would capture it.
        report: receives the error if something in the graph, or in how the device is set up,
            keeps it from being captured; not called where a capture would gain nothing.
    """
    if not device.has_graphs:
        return f"{device.name} has no CUDA graphs"
    if not graph.launching:
        return "it launches nothing"
    try:
        if device.why_not_capture is not None:
            raise UnsupportedError(device.why_not_capture)
        refuse_what_no_device_captures(graph)
    except UnsupportedError as error:
        report(error)
        return str(error)
    return None


def refuse_what_no_device_captures(graph: TaskGraph) -> None:
    """Looks for what no device can capture, as far as the graph tells.

    Raises:
        UnsupportedError: it has an operator that waits for the device, or whose result's size
            depends on data; or one that looks at the memory around an input, of which the copy
            that a capture reads has nothing.
    """
    copied = {s for value in graph.inputs if not value.static for s in value.holds}
    gaps = {s for value in graph.inputs if not _is_dense(value) for s in value.holds}
    values = {value.name: value for value in graph.values}
    for task in graph.tasks:
        if _waits_for_the_device(task, values):
            why = described(task, "cannot be captured: the host waits for its result")
            raise UnsupportedError(why, task.name, task.source)
        if task.target in _LOOKS_AT_THE_STORAGE and isinstance(task.args[0], Ref):
            seen = copied.intersection(values[task.args[0].name].holds)
            if seen and (_has_offset(task) or not gaps.isdisjoint(seen)):
                what = "cannot be captured: it may look at the memory around an input"
                raise UnsupportedError(described(task, what), task.name, task.source)


def _waits_for_the_device(task: Task, values: Mapping[str, Input | Task]) -> bool:
    """Whether the host waits for what an operator computes. Indices that are numbers tell sizes."""
    if _WAITS_FOR_THE_DEVICE.isdisjoint(getattr(task.target, "tags", ())):
        return False
    if task.target is not _aten.index.Tensor:
        return True
    types = [values[name].type for name in ref_names(task.args[1])]
    return any(isinstance(t, TensorType) and t.dtype in _MASKS for t in types)


def described(task: Task, what: str) -> str:
    """A sentence about a task, with the user's line."""
    source = task.source
    line = f"{source}: {source.code}" if source else "no line of the model is recorded for it"
    return f"{task.name} ({task.target}): {what} [{line}]"


def _has_offset(task: Task) -> bool:
    given = [*task.args[_PLACE_OF_OFFSET:], dict(task.kwargs).get("storage_offset")]
    return any(offset is not None for offset in given)


def _is_dense(value: Input) -> bool:
    """Whether its elements are all that there is from the first of them to the last.

    Symbolic sizes are taken to leave gaps.
    """
    if not isinstance(value.type, TensorType):
        return True
    if any(isinstance(size, str) for size in (*value.type.shape, *value.type.stride)):
        return False
    lengths, steps = numbers(value.type.shape), numbers(value.type.stride)
    expected = 1
    for step, n in sorted((step, n) for step, n in zip(steps, lengths, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= n
    return True
