"""The time of a scheduled program on a device, by simulation."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nimble_fx.cost import Cost
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.discrete_event import Activity, Timeline, simulate

FORK = "<fork>"
JOIN = "<join>"
HOST = "host"
"""Names of the activities that are not tasks, which no task can have, and of the host's queue."""


def predict(
    graph: TaskGraph, costs: Mapping[str, Cost], device: Device, *, frozen: bool = True
) -> Timeline:
    """A simulated run of a schedule.

    Args:
        graph: scheduled: streams and waits are set.
        costs: the cost of each launching task, by name.
        device: the device that runs it.
        frozen: whether it is replayed as a CUDA graph; else the host calls each operator.
    """
    return simulate(activities(graph, costs, device, frozen=frozen))


def activities(
    graph: TaskGraph, costs: Mapping[str, Cost], device: Device, *, frozen: bool = True
) -> list[Activity]:
    """The activities of a schedule, in launch order; with the host's calls unless it is frozen.

    A device with fewer queues than the program has streams runs several streams on one.
    """
    kernels = list(_kernels(graph, costs, device))
    return kernels if frozen else list(_with_host(kernels, device))


def _kernels(graph: TaskGraph, costs: Mapping[str, Cost], device: Device) -> Iterator[Activity]:
    forks, event = set(graph.forks), device.event_us
    if forks:
        yield Activity(FORK, _queue(0, device), 0.0)
    for task in graph.launching:
        cost = costs[task.name]
        after = [(name, event) for name in task.waits]
        after += [(FORK, event)] if task.name in forks else []
        after += [(name, 0.0) for name in task.after if name not in task.waits]
        yield Activity(
            task.name,
            _queue(task.stream or 0, device),
            cost.us,
            tuple(after),
            "gpu",
            cost.share,
            cost.bandwidth,
        )
    if graph.joins:
        joined = tuple((name, event) for name in graph.joins)
        yield Activity(JOIN, _queue(0, device), 0.0, joined)


def _queue(stream: int, device: Device) -> str:
    return f"s{stream % device.max_streams}"


def _with_host(kernels: Iterable[Activity], device: Device) -> Iterator[Activity]:
    """Each kernel after the host's call that enqueues it."""
    for kernel in kernels:
        call = Activity(f"{HOST} {kernel.name}", HOST, device.launch_us if kernel.engine else 0.0)
        yield call
        yield replace(kernel, after=(*kernel.after, (call.name, 0.0)))
