"""Launch order by cost: topological, on the same streams, urgent or alternating tasks first."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.cost import Cost
from nimble_fx.cost.given_costs import GivenCosts
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.passes.order_by_cost import LaunchOrder, OrderByCost
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs
from tests.strategies.costs import cost, device, given_costs
from tests.support.schedules import traced

ORDERS: st.SearchStrategy[LaunchOrder] = st.sampled_from(["critical", "alternating"])


def streams(graph: TaskGraph) -> dict[str, int | None]:
    return {task.name: task.stream for task in graph.tasks}


@given(task_graphs(), ORDERS, st.data())
def test_it_is_a_topological_order_of_the_same_tasks_on_the_same_streams(
    graph: TaskGraph, order: LaunchOrder, data: st.DataObject
) -> None:
    assigned = AssignStreams()(ReduceEdges()(graph))
    result = OrderByCost(data.draw(given_costs(graph)), order)(assigned)
    verify_structure(result)
    assert streams(result) == streams(assigned)
    draws = [task.index for task in result.tasks if task.ordered]
    assert draws == sorted(draws)


@given(task_graphs(), ORDERS, st.data())
def test_on_one_stream_nothing_changes(
    graph: TaskGraph, order: LaunchOrder, data: st.DataObject
) -> None:
    serial = AssignStreams("serial")(graph)
    assert OrderByCost(data.draw(given_costs(graph)), order)(serial) is serial


def assigned(function: object, costs: dict[str, Cost], order: LaunchOrder) -> list[str]:
    graph = AssignStreams()(ReduceEdges()(traced(function, torch.randn(4)).graph))  # type: ignore[arg-type]
    made = OrderByCost(GivenCosts(device(), costs), order)(graph)
    return [task.name for task in made.launching]


def fork(x: Tensor) -> Tensor:
    a = x.exp()
    return a.relu() + a.sigmoid().tanh()


def test_the_branch_that_takes_longest_comes_first_however_many_tasks_it_has() -> None:
    costs = {name: cost(1.0) for name in ("exp", "relu", "sigmoid", "tanh", "add")}
    assert assigned(fork, costs, "critical") == ["exp", "sigmoid", "relu", "tanh", "add"]
    costs["relu"] = cost(5.0)
    assert assigned(fork, costs, "critical") == ["exp", "relu", "sigmoid", "tanh", "add"]


def four(x: Tensor) -> Tensor:
    return torch.stack([x.exp(), x.sin(), x.cos(), x.tan()])


def test_tasks_that_want_operations_and_tasks_that_want_bytes_take_turns() -> None:
    product = Cost(us=1.0, nbytes=1.0, flops=1e6, share=0.5, bandwidth=0.1)
    smaller = Cost(us=1.0, nbytes=1.0, flops=1e6, share=0.2, bandwidth=0.1)
    copy = Cost(us=1.0, nbytes=1e6, flops=1.0, share=0.1, bandwidth=0.5)
    costs = {"exp": product, "sin": smaller, "cos": copy, "tan": copy, "stack": copy}
    order = assigned(four, costs, "alternating")
    assert order == ["sin", "cos", "exp", "tan", "stack"]


def chain_beside_copies(x: Tensor) -> Tensor:
    return torch.stack([x.exp().sin(), x.cos(), x.tan()])


def test_a_task_that_is_only_just_ready_waits_for_its_turn() -> None:
    product = Cost(us=1.0, nbytes=1.0, flops=1e6, share=0.5, bandwidth=0.1)
    copy = Cost(us=1.0, nbytes=1e6, flops=1.0, share=0.1, bandwidth=0.5)
    costs = {"exp": product, "sin": product, "cos": copy, "tan": copy, "stack": copy}
    order = assigned(chain_beside_copies, costs, "alternating")
    assert order == ["exp", "cos", "sin", "tan", "stack"]
