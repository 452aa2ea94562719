"""Any order that respects `earlier_tasks` is a launch order."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.scheduling.launch_order import ReadySet, earlier_tasks, in_launch_order, upward_rank
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs, topological_orders


@given(task_graphs(), st.data())
def test_tasks_are_in_the_order_that_was_asked_for(graph: TaskGraph, data: st.DataObject) -> None:
    earlier = earlier_tasks(ReduceEdges()(graph))
    order = data.draw(topological_orders(earlier))
    result = in_launch_order(ReduceEdges()(graph), order)
    verify_structure(result)
    assert [task.name for task in result.tasks if task.name in earlier] == order


@given(task_graphs(), st.data())
def test_random_draws_keep_program_order_in_each_of_them(
    graph: TaskGraph, data: st.DataObject
) -> None:
    order = data.draw(topological_orders(earlier_tasks(graph)))
    draws = [task.index for task in in_launch_order(graph, order).tasks if task.ordered]
    assert draws == sorted(draws)


@given(task_graphs(), st.data())
def test_a_task_is_ready_once_all_that_it_comes_after_are_taken(
    graph: TaskGraph, data: st.DataObject
) -> None:
    earlier = earlier_tasks(graph)
    ready = ReadySet(earlier)
    waiting, taken = list(ready.first()), list[str]()
    while waiting:
        assert all(set(earlier[name]) <= set(taken) for name in waiting)
        taken.append(data.draw(st.sampled_from(waiting)))
        waiting.remove(taken[-1])
        waiting += ready.after(taken[-1])
    assert sorted(taken) == sorted(earlier)


@given(task_graphs(), st.data())
def test_upward_rank_is_what_the_longest_path_takes(graph: TaskGraph, data: st.DataObject) -> None:
    earlier = earlier_tasks(graph)
    us = {name: data.draw(st.integers(0, 9)) for name in earlier}
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(earlier)
    for name, before in earlier.items():
        digraph.add_weighted_edges_from((other, name, -us[name]) for other in before)
    for name, ahead in upward_rank(earlier, us).items():
        lengths = nx.single_source_bellman_ford_path_length(digraph, name)
        assert ahead == pytest.approx(us[name] - min(lengths.values()))
