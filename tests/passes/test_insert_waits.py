"""Waits: every order is kept, with as few as theory allows."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.insert_waits import InsertWaits
from tests.strategies import task_graphs
from tests.support.oracle import fewest_waits, happens_before, races
from tests.support.schedules import scheduled, waiting_schedules


@given(waiting_schedules())
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


@given(waiting_schedules())
def test_no_wait_follows_from_the_others(graph: TaskGraph) -> None:
    _assert_that_no_wait_follows_from_the_others(graph)


@given(task_graphs(), st.data())
def test_no_wait_follows_from_the_others_for_a_policy_that_reduces_no_edges(
    graph: TaskGraph, data: st.DataObject
) -> None:
    launching = [task.name for task in graph.launching]
    streams = data.draw(st.tuples(*(st.integers(0, 2) for _ in launching)))
    stream_of = dict(zip(launching, streams, strict=True))
    on_streams = graph.replace_tasks(
        task.updated(stream=stream_of.get(task.name)) for task in graph.tasks
    )
    made = InsertWaits()(on_streams)
    assert not races(made)
    _assert_that_no_wait_follows_from_the_others(made)


def _assert_that_no_wait_follows_from_the_others(graph: TaskGraph) -> None:
    by_stream: dict[int | None, list[str]] = {}
    for task in graph.launching:
        by_stream.setdefault(task.stream, []).append(task.name)
    waits = {(name, task.name) for task in graph.tasks for name in task.waits}
    order = nx.DiGraph(waits)
    for names in by_stream.values():
        nx.add_path(order, names)
    assert waits <= set(nx.transitive_reduction(order).edges)
