"""A footprint is the memory of a schedule's values, whatever the streams."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.memory_model import allocated, footprint
from tests.support.schedules import schedule_of, scheduled, schedules, traced

MIB = 1 << 20


def test_a_chain_needs_two_of_its_values_at_once() -> None:
    found = footprint(schedule_of(lambda x: x.exp().sin().cos().tan(), torch.empty(MIB)))
    assert found.peak == found.pooled == 2 * 4 * MIB


def test_values_on_two_streams_do_not_lie_in_one_pool() -> None:
    def program(x: Tensor) -> Tensor:
        return x.exp().sin() + x.cos().tan()

    graph = traced(program, torch.empty(MIB)).graph
    one, two = (footprint(scheduled(graph, policy)) for policy in ("serial", "nimble"))
    assert one.pooled == 3 * 4 * MIB
    assert two.pooled == 4 * 4 * MIB
    assert two.reserved == 2 * one.reserved == 2 * 20 * MIB


def test_each_of_several_results_counts_and_a_view_does_not() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.sort()
        return values.view(2, -1), indices

    (task,) = schedule_of(program, torch.empty(1024)).launching
    assert dict(allocated(task)) == {"sort.0": 4096, "sort.1": 8192}


@given(schedules())
def test_no_more_is_freed_than_was_taken_and_what_is_returned_stays(graph: TaskGraph) -> None:
    found = footprint(graph)
    sizes = {name: n for task in graph.launching for name, n in allocated(task)}
    kept = {
        s
        for value in graph.tasks
        for r in graph.outputs
        if r.name == value.name
        for s in value.holds
    }
    assert found.peak >= sum(sizes.get(storage, 0) for storage in kept)
    assert found.peak <= found.pooled <= found.reserved
    assert found.pooled <= sum(-(-max(n, 1) // 512) * 512 for n in sizes.values())


@pytest.mark.parametrize(("width", "nbytes"), [(16, 2 * MIB), (1024, 32 * MIB)])
def test_each_stream_with_products_has_one_workspace(width: int, nbytes: int) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return x @ w @ w, x.sigmoid() @ w, x.relu()

    x, w = torch.empty(1, width, device="meta"), torch.empty(width, width, device="meta")
    graph = schedule_of(program, x, w)
    assert graph.n_streams == 3
    without, found = (footprint(graph, each).reserved for each in (0, 32 * MIB))
    # Small workspaces fit into the segments of the small values, of which each stream has one.
    assert without == 3 * 2 * MIB
    assert found - without == (0 if width == 16 else 2 * nbytes)
