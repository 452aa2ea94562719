"""Bookkeeping opens no stream, and stays ordered with the tasks that it depends on."""

import torch
from hypothesis import given
from torch import Tensor, nn

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.chain_allocations import ChainAllocations
from nimble_fx.passes.chain_bookkeeping import ChainBookkeeping, bookkeeping
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs
from tests.support.eager import assert_same
from tests.support.oracle import conflicts, races
from tests.support.schedules import scheduled, traced


def norms(x: Tensor, mean: Tensor, count: Tensor) -> Tensor:
    """Two normalisations that keep statistics, on two branches."""
    left = x.exp()
    mean.copy_(mean * 0.9 + left.mean(0))
    count.add_(1)
    right = x.sin()
    return left.relu() + right.tanh()


def graph_of_norms() -> TaskGraph:
    return traced(norms, torch.ones(2, 3), torch.ones(3), torch.ones(()), functional=False).graph


def test_small_write_backs_and_what_only_serves_them_are_bookkeeping() -> None:
    assert bookkeeping(graph_of_norms()) == {"mul", "mean", "add", "copy_", "add_"}


def test_results_and_large_write_backs_are_not() -> None:
    def program(state: Tensor, x: Tensor) -> Tensor:
        state.copy_(x)
        return x.sum()

    graph = traced(program, torch.ones(200, 200), torch.ones(200, 200), functional=False).graph
    assert bookkeeping(graph) == set()


def test_bookkeeping_opens_no_stream() -> None:
    assert scheduled(graph_of_norms()).n_streams == 2


def test_an_update_by_a_size_comes_after_the_task_that_has_it() -> None:
    class Counted(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            count = self.count + 1
            places = (x * count).nonzero()
            self.count.copy_(count.add(places.shape[0]))
            return places

    ours, theirs, x = Counted(), Counted(), torch.randn(3, 4).relu()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(ours, backend="nimble", options={"policy": "nimble"})
        assert_same(compiled(x), theirs(x))
    assert_same(ours.count, theirs.count)


def test_an_update_does_not_come_between_an_allocation_and_its_user() -> None:
    def program(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        count.add_(1)
        empty = torch.empty_like(x)
        return empty.copy_(x), x.sin()

    graph = traced(program, torch.ones(2, 3), torch.ones(()), functional=False).graph
    names = [task.name for task in ChainBookkeeping()(ChainAllocations()(graph)).tasks]
    assert names.index("copy_") == names.index("empty_like") + 1


@given(task_graphs())
def test_random_draws_stay_where_they_are(graph: TaskGraph) -> None:
    draws = [task.name for task in graph.tasks if task.ordered]
    assert [task.name for task in ChainBookkeeping()(graph).tasks if task.ordered] == draws


def test_so_do_those_whose_results_only_go_to_state() -> None:
    def program(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        left = x.exp()
        drawn = left.bernoulli()
        state.copy_(left.mean(0).bernoulli())
        return drawn.sin(), left.sin()

    graph = traced(program, torch.full((2, 3), -0.5), torch.ones(3), functional=False).graph
    draws = [task.name for task in graph.tasks if task.ordered]
    assert len(draws) == 2
    assert [task.name for task in scheduled(graph).tasks if task.ordered] == draws


@given(task_graphs())
def test_the_program_stays_the_same(graph: TaskGraph) -> None:
    chained = ChainBookkeeping()(graph)
    verify_structure(chained)
    assert conflicts(chained) == conflicts(graph)
    assert not races(scheduled(graph))
