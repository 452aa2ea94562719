"""The serial schedule is always a candidate, and no candidate is predicted to be slower."""

import pytest
import torch
from hypothesis import given

from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES, Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.pipeline import Policy, passes_for, preparation_passes, schedule
from nimble_fx.selection.candidate import MIN_GAIN
from nimble_fx.selection.search_space import STREAM_LIMITS, ScheduledCandidate, scheduled_candidates
from nimble_fx.simulation.memory_model import footprint
from nimble_fx.simulation.schedule_model import predict
from nimble_fx.verify import verify
from tests.strategies import task_graphs
from tests.support.schedules import traced, two_branches

H100 = DEVICES["h100"]


def proposed(
    graph: TaskGraph, max_streams: int = 32, device: Device = H100
) -> list[ScheduledCandidate]:
    return scheduled_candidates(graph, Roofline(device), max_streams, {})


@given(task_graphs(14))
def test_each_proposal_is_legal_and_is_what_its_policy_makes(graph: TaskGraph) -> None:
    width = schedule(graph, preparation_passes()).width
    policies: dict[str, tuple[Policy, int]] = {
        "serial": ("serial", 1),
        "nimble": ("nimble", 32),
        "critical-path": (CriticalPath(Roofline(H100), width), width),
        **{f"nimble, {n} streams": ("nimble", n) for n in STREAM_LIMITS},
    }
    for each in proposed(graph):
        verify(each.graph, graph)
        assert schedule(graph, passes_for(*policies[each.candidate.policy])) == each.graph
        assert each.candidate.n_streams == each.graph.n_streams


@given(task_graphs(14))
def test_the_first_is_serial_or_wins_over_it_and_is_the_best_that_does(graph: TaskGraph) -> None:
    found = [each.candidate for each in proposed(graph)]
    (serial,) = [each for each in found if each.policy == "serial"]
    enough = (1 - MIN_GAIN) * serial.predicted_us
    others = [each.predicted_us for each in found if each is not serial]
    winners = [us for us in others if us <= enough]
    if winners and found[0] is not serial:
        assert found[0].predicted_us == min(winners) <= enough
    else:
        assert not winners
        assert found[0] is serial


@given(task_graphs(14))
def test_figures_are_those_of_the_simulator_and_the_allocator(graph: TaskGraph) -> None:
    costs = Roofline(H100)(graph)
    for each in proposed(graph):
        assert each.candidate.predicted_us == predict(each.graph, costs, H100).makespan_us
        assert each.candidate.peak_bytes == footprint(each.graph).reserved
        assert each.candidate.measured_us is None


@given(task_graphs(14))
def test_no_proposal_has_more_streams_than_there_may_be(graph: TaskGraph) -> None:
    for limit in (1, 2, 3):
        assert all(each.graph.n_streams <= limit for each in proposed(graph, limit))


def test_a_device_with_one_queue_is_offered_the_serial_schedule_alone() -> None:
    graph = traced(two_branches, torch.empty(4)).graph
    (only,) = proposed(graph, DEVICES["cpu"].max_streams, DEVICES["cpu"])
    assert only.candidate.policy == "serial"


def test_two_small_kernels_go_side_by_side_and_two_that_fill_the_device_do_not() -> None:
    small, large = (traced(two_branches, torch.empty(n)).graph for n in (4, 10**9))
    assert proposed(small)[0].graph.n_streams == 2
    assert proposed(large)[0].candidate.policy == "serial"


def test_a_program_of_which_each_task_waits_for_the_last_has_one_proposal() -> None:
    graph = traced(lambda x: x.exp().sin().cos(), torch.empty(4)).graph
    assert [each.candidate.policy for each in proposed(graph)] == ["serial"]


def test_a_program_without_kernels_is_serial() -> None:
    graph = traced(lambda x: (x.view(-1), x.t()), torch.empty(4, 2)).graph
    assert proposed(graph)[0].candidate.policy == "serial"


def test_unfrozen_the_hosts_calls_count() -> None:
    graph = traced(two_branches, torch.empty(4)).graph
    frozen, called = (
        scheduled_candidates(graph, Roofline(H100), 32, {}, frozen=frozen)
        for frozen in (True, False)
    )
    took = [
        {each.candidate.policy: each.candidate.predicted_us for each in f} for f in (frozen, called)
    ]
    assert all(took[1][policy] > took[0][policy] for policy in took[0])


class _Tenths:
    """A model in which every task takes 10 us and a tenth of the device."""

    device = H100

    def __call__(self, graph: TaskGraph) -> dict[str, Cost]:
        return {task.name: Cost(10.0, 1, 1, 0.1, 0.1) for task in graph.launching}


@given(task_graphs(14))
def test_where_kernels_share_nothing_maximum_concurrency_reaches_the_bound(
    graph: TaskGraph,
) -> None:
    found = scheduled_candidates(graph, _Tenths(), 32, {})
    widest = next((p for p in found if p.candidate.policy == "nimble"), None)
    if widest is None or graph.width > 10:
        return
    slack = H100.event_us * (widest.graph.n_waits + 2)
    costs = _Tenths()(graph)
    assert predict(widest.graph, costs, H100).makespan_us <= bound(widest.graph) + slack + 1e-6


def bound(graph: TaskGraph) -> float:
    """The longest path of dependent tasks, at 10 us each."""
    ends: dict[str, float] = {}
    for task in graph.launching:
        ends[task.name] = 10.0 + max((ends[name] for name in task.after), default=0.0)
    return max(ends.values(), default=0.0)


@pytest.mark.parametrize("width", [2, 3, 5, 9])
def test_caps_below_the_width_are_tried(width: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x + i for i in range(width)])

    graph = traced(program, torch.empty(4)).graph
    found = {each.candidate.policy for each in proposed(graph)}
    capped = {f"nimble, {cap} streams" for cap in (2, 3, 4, 8) if cap < width}
    assert found == {"serial", "nimble", "critical-path", *capped}
    timed = scheduled_candidates(graph, Roofline(H100), 32, {}, timed=True)
    others = {"nimble, critical first", "nimble, alternating", "critical-path, equal streams"}
    assert {each.candidate.policy for each in timed} == {*found, *others}
    urgent = {each.candidate.policy for each in timed if each.graph.urgent is not None}
    assert urgent == {"critical-path"}
    without = scheduled_candidates(graph, Roofline(H100), 32, {}, timed=True, priorities=False)
    assert {each.candidate.policy for each in without} == {*found, *others} - {
        "critical-path, equal streams"
    }
    assert not any(each.graph.urgent is not None for each in without)
