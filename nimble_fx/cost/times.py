"""Times of a graph's tasks, taken on the device that is there: one for all that are alike."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean

import torch

from nimble_fx.cost.alone import task_seconds
from nimble_fx.cost.cold import cold_values
from nimble_fx.cost.in_program import measured_in_program
from nimble_fx.cost.signature import signature
from nimble_fx.cost.synthetic import synthetic
from nimble_fx.cost.table import Timed, Times
from nimble_fx.cost.work import value_types, work_of
from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import one_line
from nimble_fx.ir.task_graph import Task, TaskGraph, TensorType, Type, target_name
from nimble_fx.torch_internals.names import disable_modes, no_python_dispatcher

_Alike = Mapping[str, list[Task]]
_Seconds = dict[str, float]
_Failed = dict[str, str]
"""By signature: tasks, what they take, why they could not be timed."""


def measured_times(graph: TaskGraph, device: DeviceRuntime, known: Times) -> tuple[Times, _Failed]:
    """The times that are not known yet, and why some tasks have none.

    A device with graphs times each kind of task by itself, as nothing can be timed within a graph;
    another, where operators run when they are called, within the program.

    Args:
        graph: without symbolic sizes.
        device: that is here, and that the graph's tensors are on.
        known: times by signature.
    """
    types, cold = value_types(graph), cold_values(graph)
    new: dict[str, list[Task]] = defaultdict(list)
    for task in graph.launching:
        key = signature(task, types, cold)
        if key not in known:
            new[key].append(task)
    with undisturbed(_device_of(graph)):
        if device.has_graphs:
            seconds, failed = _each_alone(new, types, cold, device)
        else:
            seconds, failed = _in_program(graph, new)
    timed = {
        key: Timed(target_name(new[key][0].target), 1e6 * each, work_of(new[key][0], types))
        for key, each in seconds.items()
    }
    return timed, failed


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Within, operators run as they are, whoever is tracing; random draws are undone.

    A tracer's modes are off, and the dispatcher in Python that AOTAutograd compiles under, with
    which each operator takes microseconds more.
    """
    on_gpu = device.type != "cpu"
    devices = [device.index or 0] if on_gpu else []
    forked = torch.random.fork_rng(devices, device_type=device.type if on_gpu else "cuda")
    with no_python_dispatcher(), disable_modes(), torch.no_grad(), forked:
        yield


def _each_alone(
    new: _Alike, types: Mapping[str, Type | None], cold: Mapping[str, int], device: DeviceRuntime
) -> tuple[_Seconds, _Failed]:
    seconds: _Seconds = {}
    failed: _Failed = {}
    for key, (task, *_) in new.items():
        try:
            values = {name: synthetic(types[name]) for name in task.uses}
            seconds[key] = task_seconds(task, values, cold, device)
        except Exception as error:  # an operator may raise whatever it likes of made-up values
            failed[key] = one_line(error)
    return seconds, failed


def _in_program(graph: TaskGraph, new: _Alike) -> tuple[_Seconds, _Failed]:
    """Of tasks that are alike the mean, so that together they take what they took."""
    if not new:
        return {}, {}
    took = measured_in_program(graph)
    seconds: _Seconds = {}
    failed: _Failed = {}
    for key, tasks in new.items():
        timed = [took.seconds[task.name] for task in tasks if task.name in took.seconds]
        if timed:
            seconds[key] = fmean(timed)
        else:
            failed[key] = took.failed[tasks[0].name]
    return seconds, failed


def _device_of(graph: TaskGraph) -> torch.device:
    types = [value.type for value in graph.values]
    return next((t.device for t in types if isinstance(t, TensorType)), torch.device("cpu"))
