"""Any order that keeps to `earlier_tasks` is a launch order."""

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir import TaskGraph
from nimble_fx.launch_order import earlier_tasks, in_launch_order
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.verify import verify_structure
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
