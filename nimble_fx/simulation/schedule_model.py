"""What a scheduled program takes on a device, by simulation."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nimble_fx.cost import Cost
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.discrete_event import Activity, Timeline, simulate

FORK = "fork"
JOIN = "join"
HOST = "host"
"""What activities are called that are no tasks, and the host's queue."""


def predict(
    graph: TaskGraph, costs: Mapping[str, Cost], device: Device, *, frozen: bool = True
) -> Timeline:
    """A simulated run of a schedule.

    Args:
        graph: scheduled: streams and waits are set.
        costs: of each launching task, by name.
        device: where.
        frozen: replayed from a CUDA graph; else the host calls each operator in launch order.
    """
    return simulate(activities(graph, costs, device, frozen=frozen))


def activities(
    graph: TaskGraph, costs: Mapping[str, Cost], device: Device, *, frozen: bool = True
) -> list[Activity]:
    """What the device's queues are given, in launch order; the host's calls too if not frozen.

    A device with fewer queues than the program has streams runs several streams on one.
    """
    made = list(_kernels(graph, costs, device))
    return made if frozen else list(_with_host(made, device))


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
    """Each kernel behind the host's call that enqueues it."""
    for kernel in kernels:
        call = Activity(f"{HOST} {kernel.name}", HOST, device.launch_us if kernel.engine else 0.0)
        yield call
        yield replace(kernel, after=(*kernel.after, (call.name, 0.0)))
