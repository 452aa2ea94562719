"""Predicts the times of graphs on a GPU, by schedule, with the roofline and the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.measuring.lower_bound import longest_path
from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.selection.search_space import scheduled_candidates
from nimble_fx.simulation.discrete_event import bound_us
from nimble_fx.simulation.schedule_model import activities

CLEAR = 0.9
"""From this part on a reason is the reason."""


@dataclass(frozen=True)
class There:
    """The prediction for the named GPU, in microseconds.

    Attributes:
        device: the GPU's name.
        schedules: the times, by "serial", "nimble", "nimble, 2 streams", ...; "auto" is the choice.
        bound: a lower bound for any schedule: the longest path, or the work.
        reason: why streams gain, or do not.
    """

    device: str
    schedules: Mapping[str, float]
    bound: float
    reason: str

    @property
    def best(self) -> str:
        """The name of the chosen schedule, or of another with the same time."""
        named = (name for name in self.schedules if name != "auto")
        return min(named, key=lambda name: abs(self.schedules[name] - self.schedules["auto"]))

    @property
    def gain(self) -> float:
        """How many times as fast as one stream the chosen schedule is."""
        return self.schedules["serial"] / self.schedules["auto"]


def predicted_for(device: Device, graphs: Sequence[TaskGraph]) -> There:
    """The predicted times on a device of graphs that run one after another.

    A graph that is too narrow for a schedule runs on one stream under its name.
    """
    costs = [Roofline(device)(graph) for graph in graphs]
    offered = [
        scheduled_candidates(graph, Roofline(device), device.max_streams, {}) for graph in graphs
    ]
    times = [{p.candidate.policy: p.candidate.predicted_us for p in found} for found in offered]
    names = dict.fromkeys(["serial", *(name for each in times for name in each)])
    schedules = {name: sum(each.get(name, each["serial"]) for each in times) for name in names}
    schedules["auto"] = sum(found[0].candidate.predicted_us for found in offered)
    bounds = (
        bound_us(activities(graph, by_name, device))
        for graph, by_name in zip(graphs, costs, strict=True)
    )
    return There(device.name, schedules, sum(bounds), reason(graphs, costs))


def reason(graphs: Sequence[TaskGraph], costs: Sequence[Mapping[str, Cost]]) -> str:
    """Why streams gain, or do not: of path and work, what is nearest to the sum of all tasks."""
    each = [cost for by_name in costs for cost in by_name.values()]
    total = sum(cost.us for cost in each)
    if not total:
        return "nothing runs"
    pairs = zip(graphs, costs, strict=True)
    path = sum(longest_path(g, {n: c.us for n, c in by_name.items()}) for g, by_name in pairs)
    busy = sum(cost.us * cost.share for cost in each)
    memory = sum(cost.us * cost.bandwidth for cost in each)
    if path >= CLEAR * total:
        return f"a chain: the longest path is {path / total:.0%} of the tasks' time"
    if max(busy, memory) >= CLEAR * total:
        what = "processors" if busy >= memory else "memory"
        return f"kernels fill the device: {max(busy, memory) / total:.0%} of its {what} are busy"
    width = max(graph.width for graph in graphs)
    limits = {"path": path, "processors": busy, "memory": memory}
    limit = max(limits, key=lambda name: limits[name])
    return f"up to {width} at once; limited by the {limit} to {total / limits[limit]:.1f} times"
