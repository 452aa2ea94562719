"""Which schedules a program could have, each with what it would take."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nimble_fx.cost import Cost, CostModel
from nimble_fx.devices.specs import Device
from nimble_fx.ir.symbolic_sizes import Sizes, concrete
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.passes.order_by_cost import OrderByCost
from nimble_fx.pipeline import Pass, completion_passes, policy_passes, preparation_passes, schedule
from nimble_fx.selection.candidate import MIN_GAIN, Candidate
from nimble_fx.simulation.memory_model import footprint
from nimble_fx.simulation.schedule_model import predict

CAPS = (2, 3, 4, 8)
"""At most so many streams are tried with "nimble", beside as many as it wants."""


@dataclass(frozen=True)
class Proposal:
    """A candidate with its schedule."""

    candidate: Candidate
    graph: TaskGraph


@dataclass(frozen=True)
class _Known:
    """A cost model that has been asked."""

    device: Device
    costs: Mapping[str, Cost]

    def __str__(self) -> str:
        return self.device.name

    def __call__(self, graph: TaskGraph) -> Mapping[str, Cost]:
        return self.costs


def proposals(
    graph: TaskGraph,
    costs: CostModel,
    max_streams: int,
    sizes: Sizes,
    *,
    frozen: bool = True,
    timed: bool = False,
    priorities: bool = True,
) -> list[Proposal]:
    """The schedules to choose from, the one that is predicted to take least first.

    The serial one is always among them, and before all that do not win `MIN_GAIN` over it.

    Args:
        graph: as traced.
        costs: of its tasks.
        max_streams: at most so many streams.
        sizes: what symbolic sizes are taken for.
        frozen: see `predict`.
        timed: whether the best are to be timed; then there are other launch orders among them.
        priorities: whether a stream may be urgent.

    Raises:
        UnsupportedError: a size is not known.

    Cost: that of all passes but the first two, for each.
    """
    prepared = schedule(graph, preparation_passes())
    cost = costs(prepared)
    known = _Known(costs.device, cost)
    found = []
    for name, middle in _policies(prepared, known, max_streams, timed, priorities):
        made = schedule(prepared, (*middle, *completion_passes()))
        took = predict(made, cost, costs.device, frozen=frozen).makespan_us
        peak = footprint(concrete(made, sizes)).reserved
        candidate = Candidate(name, made.n_streams, took, None, peak)
        found.append(Proposal(candidate, made))
    serial = next(each for each in found if each.candidate.policy == "serial")
    enough = (1 - MIN_GAIN) * serial.candidate.predicted_us
    return sorted(found, key=lambda each: _rank(each, enough))


def _rank(proposal: Proposal, enough: float) -> tuple[bool, bool, float]:
    """Those that win enough, then the serial one, then the rest, each by predicted time."""
    took, is_serial = proposal.candidate.predicted_us, proposal.candidate.policy == "serial"
    wins = took <= enough and not is_serial
    return not wins, not (wins or is_serial), took


def _policies(
    graph: TaskGraph, costs: CostModel, max_streams: int, timed: bool, priorities: bool
) -> Iterator[tuple[str, tuple[Pass, ...]]]:
    """The policies that can give different schedules: what each is called, and its passes."""
    yield "serial", policy_passes("serial", 1)
    width = min(graph.width, max_streams) if max_streams > 1 else 1
    if width == 1:
        return
    nimble = policy_passes("nimble", max_streams)
    yield "nimble", nimble
    if timed:  # what simulation takes for the same, how CUDA maps branches to queues may not
        yield "nimble, critical first", (*nimble, OrderByCost(costs, "critical"))
        yield "nimble, alternating", (*nimble, OrderByCost(costs, "alternating"))
    for limit in CAPS:
        if limit < width:
            yield f"nimble, {limit} streams", policy_passes("nimble", limit)
    yield "critical-path", (CriticalPath(costs, width, priorities),)
    if timed and priorities:  # a priority is not simulated
        yield "critical-path, equal streams", (CriticalPath(costs, width, priorities=False),)
