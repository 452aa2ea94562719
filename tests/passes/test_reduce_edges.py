"""The minimum equivalent graph against networkx."""

import networkx as nx
from hypothesis import given

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.reduce_edges import ReduceEdges
from tests.strategies import task_graphs


@given(task_graphs())
def test_it_keeps_the_transitive_reduction(graph: TaskGraph) -> None:
    reduced = ReduceEdges()(graph)
    expected = nx.transitive_reduction(graph.to_networkx())
    assert set(reduced.to_networkx().edges) == set(expected.edges)


@given(task_graphs())
def test_a_second_run_changes_nothing_and_returns_the_same_object(graph: TaskGraph) -> None:
    reduced = ReduceEdges()(graph)
    assert ReduceEdges()(reduced) is reduced
