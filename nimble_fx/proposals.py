"""Which schedules a program could have, each with what it would take."""

from collections.abc import Iterator
from dataclasses import dataclass

from nimble_fx.candidates import MARGIN, Candidate
from nimble_fx.cost import CostModel
from nimble_fx.footprint import footprint
from nimble_fx.ir import TaskGraph
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.pipeline import Pass, Policy, finishing, preparing, schedule, streams_and_order
from nimble_fx.predict import predict
from nimble_fx.sizes import Sizes, concrete

CAPS = (2, 3, 4, 8)
"""At most so many streams are tried with "nimble", beside as many as it wants."""


@dataclass(frozen=True)
class Proposal:
    """A candidate with its schedule and the passes that made it."""

    candidate: Candidate
    passes: tuple[Pass, ...]
    graph: TaskGraph


def proposals(
    graph: TaskGraph, costs: CostModel, max_streams: int, sizes: Sizes, *, frozen: bool = True
) -> list[Proposal]:
    """The schedules to choose from, the one that is predicted to take least first.

    The serial one is always among them, and before all that do not win `MARGIN` over it.

    Args:
        graph: as traced.
        costs: of its tasks.
        max_streams: at most so many streams.
        sizes: what symbolic sizes are taken for.
        frozen: see `predict`.

    Raises:
        UnsupportedError: a size is not known.

    Cost: that of all passes but the first two, for each.
    """
    prepared = schedule(graph, preparing())
    cost = costs(prepared)
    found = []
    for policy, limit, name in _policies(prepared, costs, max_streams):
        rest = (*streams_and_order(policy, limit), *finishing())
        made = schedule(prepared, rest)
        took = predict(made, cost, costs.device, frozen=frozen).makespan_us
        peak = footprint(concrete(made, sizes)).reserved
        candidate = Candidate(name, made.n_streams, took, None, peak)
        found.append(Proposal(candidate, (*preparing(), *rest), made))
    serial = next(each for each in found if each.candidate.policy == "serial")
    enough = (1 - MARGIN) * serial.candidate.predicted_us
    return sorted(found, key=lambda each: _rank(each, enough))


def _rank(proposal: Proposal, enough: float) -> tuple[bool, bool, float]:
    """Those that win enough, then the serial one, then the rest, each by predicted time."""
    took, is_serial = proposal.candidate.predicted_us, proposal.candidate.policy == "serial"
    wins = took <= enough and not is_serial
    return not wins, not (wins or is_serial), took


def _policies(
    graph: TaskGraph, costs: CostModel, max_streams: int
) -> Iterator[tuple[Policy, int, str]]:
    """The policies that can give different schedules, each with a limit of streams and a name."""
    yield "serial", 1, "serial"
    width = min(graph.width, max_streams) if max_streams > 1 else 1
    if width == 1:
        return
    yield "nimble", max_streams, "nimble"
    for limit in CAPS:
        if limit < width:
            yield "nimble", limit, f"nimble, {limit} streams"
    yield CriticalPath(costs, width), width, "critical-path"
