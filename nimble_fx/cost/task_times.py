"""Measures the times of a graph's tasks on this machine, one for each signature."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean

import torch

from nimble_fx.cost.cold_values import cold_values
from nimble_fx.cost.signature import signature
from nimble_fx.cost.synthetic import synthetic
from nimble_fx.cost.time_alone import task_seconds
from nimble_fx.cost.time_in_program import measured_in_program
from nimble_fx.cost.time_table import MeasuredTime, MeasuredTimes
from nimble_fx.cost.work import work_of
from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import one_line
from nimble_fx.ir.task_graph import Task, TaskGraph, target_name
from nimble_fx.ir.types import Type
from nimble_fx.torch_internals.names import disable_modes, no_python_dispatcher
from nimble_fx.torch_internals.operators import only_allocates

_TasksBySignature = Mapping[str, list[Task]]
_Seconds = dict[str, float]
_Failed = dict[str, str]
"""By signature: the tasks, their time, the error of one that could not be timed."""


def measured_times(
    graph: TaskGraph, device: DeviceRuntime, known: MeasuredTimes
) -> tuple[MeasuredTimes, _Failed]:
    """The times of signatures that are not known yet, and the errors of those that failed.

    On a device with CUDA graphs, each task is timed by itself, because single tasks cannot be timed
    within a graph; on other devices, within the program.

    Args:
        graph: without symbolic sizes.
        device: the graph's device, on this machine.
        known: times by signature.
    """
    types, cold = graph.types, cold_values(graph)
    new: dict[str, list[Task]] = defaultdict(list)
    for task in graph.launching:
        key = signature(task, types, cold)
        if key not in known and not only_allocates(task.target):
            new[key].append(task)
    with plain_execution(graph.device):
        if device.has_graphs:
            seconds, failed = _each_alone(new, types, cold, device)
        else:
            seconds, failed = _in_program(graph, new)
    timed = {
        key: MeasuredTime(target_name(new[key][0].target), 1e6 * each, work_of(new[key][0], types))
        for key, each in seconds.items()
    }
    return timed, failed


@contextmanager
def plain_execution(device: torch.device) -> Iterator[None]:
    """Disables tracing modes and gradients, and restores the random number generators afterwards.

    The Python dispatcher, which AOTAutograd enables while it compiles, is off too: it adds
    microseconds to each operator.
    """
    on_gpu = device.type != "cpu"
    devices = [device.index or 0] if on_gpu else []
    forked = torch.random.fork_rng(devices, device_type=device.type if on_gpu else "cuda")
    with no_python_dispatcher(), disable_modes(), torch.no_grad(), forked:
        yield


def _each_alone(
    new: _TasksBySignature,
    types: Mapping[str, Type | None],
    cold: Mapping[str, int],
    device: DeviceRuntime,
) -> tuple[_Seconds, _Failed]:
    seconds: _Seconds = {}
    failed: _Failed = {}
    for key, (task, *_) in new.items():
        try:
            values = {name: synthetic(types[name]) for name in task.uses}
            seconds[key] = task_seconds(task, values, cold, device)
        except Exception as error:  # an operator may raise any error on synthetic values
            failed[key] = one_line(error)
    return seconds, failed


def _in_program(graph: TaskGraph, new: _TasksBySignature) -> tuple[_Seconds, _Failed]:
    """Times within the program: the mean of the tasks of one signature, so that the sum is kept."""
    if not new:
        return {}, {}
    measured = measured_in_program(graph)
    seconds: _Seconds = {}
    failed: _Failed = {}
    for key, tasks in new.items():
        timed = [measured.seconds[task.name] for task in tasks if task.name in measured.seconds]
        if timed:
            seconds[key] = fmean(timed)
        else:
            failed[key] = measured.failed[tasks[0].name]
    return seconds, failed
