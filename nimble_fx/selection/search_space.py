"""The search space of policy "auto": candidate schedules with their predicted costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from nimble_fx.cost import CostModel
from nimble_fx.cost.given_costs import GivenCosts
from nimble_fx.ir.symbolic_sizes import Sizes, concrete
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.passes.order_by_cost import OrderByCost
from nimble_fx.pipeline import Pass, completion_passes, policy_passes, preparation_passes, schedule
from nimble_fx.selection.candidate import MIN_GAIN, Candidate
from nimble_fx.simulation.memory_model import footprint
from nimble_fx.simulation.schedule_model import predict

STREAM_LIMITS = (2, 3, 4, 8)
"""The limits on streams that "nimble" is tried with, besides without a limit."""


@dataclass(frozen=True)
class ScheduledCandidate:
    """A candidate with its schedule."""

    candidate: Candidate
    graph: TaskGraph


def scheduled_candidates(
    graph: TaskGraph,
    costs: CostModel,
    max_streams: int,
    sizes: Sizes,
    *,
    frozen: bool = True,
    timed: bool = False,
    priorities: bool = True,
) -> list[ScheduledCandidate]:
    """The candidates with their schedules, the fastest by prediction first.

    The serial one is always among them, before all that are not faster by `MIN_GAIN`.

    Args:
        graph: the traced graph.
        costs: the cost model of its tasks.
        max_streams: the largest number of streams.
        sizes: the values of symbolic sizes.
        frozen: see `predict`.
        timed: whether the best will be autotuned; then other launch orders are among them.
        priorities: whether a stream may be urgent.

    Raises:
        UnsupportedError: a size is not known.

    Cost: that of the policy's and the completion passes, for each candidate.
    """
    prepared = schedule(graph, preparation_passes())
    cost = costs(prepared)
    fixed = GivenCosts(costs.device, cost)
    found = []
    for name, passes in _policies(prepared, fixed, max_streams, timed, priorities):
        scheduled = schedule(prepared, (*passes, *completion_passes()))
        predicted_us = predict(scheduled, cost, costs.device, frozen=frozen).makespan_us
        peak = footprint(concrete(scheduled, sizes), costs.device.workspace_nbytes).reserved
        candidate = Candidate(name, scheduled.n_streams, predicted_us, None, peak)
        found.append(ScheduledCandidate(candidate, scheduled))
    serial = next(each for each in found if each.candidate.policy == "serial")
    threshold_us = (1 - MIN_GAIN) * serial.candidate.predicted_us
    return sorted(found, key=lambda each: _rank(each, threshold_us))


def _rank(scheduled: ScheduledCandidate, threshold_us: float) -> tuple[bool, bool, float]:
    """The sort key: those within the threshold, then serial, then the rest, each by time."""
    us, is_serial = scheduled.candidate.predicted_us, scheduled.candidate.policy == "serial"
    has_kernels = threshold_us > 0  # else all schedules take 0 us
    wins = has_kernels and us <= threshold_us and not is_serial
    return not wins, not is_serial, us


def _policies(
    graph: TaskGraph, costs: CostModel, max_streams: int, timed: bool, priorities: bool
) -> Iterator[tuple[str, tuple[Pass, ...]]]:
    """The name and passes of each policy that may give another schedule."""
    yield "serial", policy_passes("serial", 1)
    width = min(graph.width, max_streams) if max_streams > 1 else 1
    if width == 1:
        return
    nimble = policy_passes("nimble", max_streams)
    yield "nimble", nimble
    if timed:  # simulation does not tell them apart: how CUDA maps branches to queues may
        yield "nimble, critical first", (*nimble, OrderByCost(costs, "critical"))
        yield "nimble, alternating", (*nimble, OrderByCost(costs, "alternating"))
    for limit in STREAM_LIMITS:
        if limit < width:
            yield f"nimble, {limit} streams", policy_passes("nimble", limit)
    yield "critical-path", (CriticalPath(costs, width, priorities),)
    if timed and priorities:  # a priority is not simulated
        yield "critical-path, equal streams", (CriticalPath(costs, width, priorities=False),)
