"""Allocations open no stream, cost no wait, and stay ahead of the tasks that use their memory."""

import networkx as nx
import torch
from hypothesis import given
from torch import Tensor

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.chain_allocations import ChainAllocations
from nimble_fx.torch_internals.operators import only_allocates
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs
from tests.support.oracle import conflicts, races
from tests.support.schedules import scheduled, traced


def into_preallocated(x: Tensor) -> Tensor:
    """A serial chain of kernels that write into memory allocated before, as Triton kernels do."""
    for _ in range(3):
        out = torch.empty_like(x)
        out.copy_(x.neg())
        x = out
    return x


def dependencies(graph: TaskGraph) -> "nx.DiGraph[str]":
    """An edge for each two tasks of which one depends on the other."""
    order: nx.DiGraph[str] = nx.DiGraph()
    order.add_nodes_from(task.name for task in graph.launching)
    order.add_edges_from((name, task.name) for task in graph.launching for name in task.after)
    closure: nx.DiGraph[str] = nx.transitive_closure_dag(order)
    return closure


def width(graph: TaskGraph, *, of_allocations: bool) -> int:
    """The largest set of independent tasks, with or without allocations: by brute force."""
    order = dependencies(graph)
    if not of_allocations:
        order.remove_nodes_from(t.name for t in graph.launching if only_allocates(t.target))
    return max(map(len, nx.antichains(order)))


def test_serial_kernels_into_preallocated_memory_share_a_stream() -> None:
    graph = traced(into_preallocated, torch.ones(2, 3), functional=False).graph
    assert sum(only_allocates(task.target) for task in graph.tasks) == 3
    assert scheduled(graph).n_streams == 1


def test_memory_is_allocated_right_before_its_first_use() -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        y = x.exp().sin()
        out.copy_(y)
        return out

    graph = traced(program, torch.ones(2, 3), functional=False).graph
    names = [task.name for task in ChainAllocations()(graph).launching]
    assert names == ["exp", "sin", "empty_like", "copy_"]


def test_memory_that_no_task_uses_is_allocated_last() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(x)
        return out.t(), x.exp()

    graph = scheduled(traced(program, torch.ones(2, 3), functional=False).graph)
    assert [task.name for task in graph.launching] == ["exp", "empty_like"]
    assert graph.n_streams == 1


def test_memory_like_a_view_of_other_new_memory_comes_after_that() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.empty_like(x)
        second = torch.empty_like(first.t())
        return second.copy_(x.exp().t()), first.copy_(x)

    graph = ChainAllocations()(traced(program, torch.ones(2, 3), functional=False).graph)
    names = [task.name for task in graph.launching]
    assert names == ["exp", "empty_like", "empty_like_1", "copy_", "copy__1"]
    verify_structure(graph)


def test_a_call_with_side_effects_and_no_tensors_keeps_its_place() -> None:
    with torch.library._scoped_library("chained", "FRAGMENT") as library:
        library.define("note(int n) -> ()")
        library.impl("note", lambda n: None, "CompositeExplicitAutograd")

        def program(x: Tensor) -> tuple[Tensor, Tensor]:
            torch.ops.chained.note(1)
            y = torch.rand_like(x)
            torch.ops.chained.note(2)
            return y, torch.empty_like(x)

        graph = scheduled(traced(program, torch.ones(2, 3), functional=False).graph)
        names = [task.name for task in graph.tasks]
        assert names == ["note", "rand_like", "note_1", "empty_like"]


@given(task_graphs(max_tasks=10))
def test_the_graph_is_as_wide_as_without_allocations(graph: TaskGraph) -> None:
    chained = ChainAllocations()(graph)
    assert width(chained, of_allocations=True) == max(1, width(graph, of_allocations=False))


@given(task_graphs())
def test_draws_keep_their_order(graph: TaskGraph) -> None:
    draws = [task.name for task in graph.tasks if task.ordered]
    assert [task.name for task in ChainAllocations()(graph).tasks if task.ordered] == draws


@given(task_graphs())
def test_the_program_stays_the_same(graph: TaskGraph) -> None:
    chained = ChainAllocations()(graph)
    verify_structure(chained)
    assert conflicts(chained) == conflicts(graph)
    assert not races(scheduled(graph))


@given(task_graphs())
def test_no_dependency_is_lost_and_nothing_is_left_to_chain(graph: TaskGraph) -> None:
    once = ChainAllocations()(graph)
    assert ChainAllocations()(once) is once
    before, after = dependencies(graph), dependencies(once)
    assert all(after.has_edge(*edge) for edge in before.edges)
