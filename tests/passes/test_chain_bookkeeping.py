"""Bookkeeping opens no stream, and stays ordered with the tasks that it depends on."""

import torch
from hypothesis import given
from torch import Tensor

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.chain_bookkeeping import ChainBookkeeping, bookkeeping
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs
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
