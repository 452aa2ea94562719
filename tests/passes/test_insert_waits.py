"""Waits: every order is kept, with as few as theory allows."""

import networkx as nx
from hypothesis import given

from nimble_fx.ir.task_graph import TaskGraph
from tests.strategies import task_graphs
from tests.support.oracle import fewest_waits, happens_before, races
from tests.support.schedules import scheduled, schedules


@given(schedules())
def test_every_order_is_kept(graph: TaskGraph) -> None:
    order = happens_before(graph)
    assert all(order.has_edge(u, v) for u, v in graph.to_networkx().edges)
    assert not races(graph)


@given(task_graphs())
def test_policy_nimble_waits_once_for_each_edge_that_a_maximum_matching_leaves(
    graph: TaskGraph,
) -> None:
    result = scheduled(graph)
    assert result.n_waits == fewest_waits(result)


@given(schedules())
def test_no_wait_follows_from_the_others(graph: TaskGraph) -> None:
    by_stream: dict[int | None, list[str]] = {}
    for task in graph.launching:
        by_stream.setdefault(task.stream, []).append(task.name)
    waits = {(name, task.name) for task in graph.tasks for name in task.waits}
    order = nx.DiGraph(waits)
    for names in by_stream.values():
        nx.add_path(order, names)
    assert waits <= set(nx.transitive_reduction(order).edges)
