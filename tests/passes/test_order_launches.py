"""Launch order: topological, random draws in program order, the critical path first."""

from itertools import permutations

import torch
from hypothesis import given
from torch import Tensor

from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.passes.order_launches import OrderLaunches
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs
from tests.support.schedules import schedule_of, traced


def ordered(graph: TaskGraph) -> TaskGraph:
    return OrderLaunches()(AssignStreams()(ReduceEdges()(graph)))


@given(task_graphs())
def test_it_is_a_topological_order_of_the_same_tasks(graph: TaskGraph) -> None:
    result = ordered(graph)
    verify_structure(result)
    assert sorted(task.name for task in result.tasks) == sorted(task.name for task in graph.tasks)


@given(task_graphs())
def test_random_draws_keep_program_order(graph: TaskGraph) -> None:
    draws = [task.index for task in ordered(graph).tasks if task.ordered]
    assert draws == sorted(draws)


@given(task_graphs())
def test_on_one_stream_launches_keep_program_order(graph: TaskGraph) -> None:
    result = OrderLaunches()(AssignStreams("serial")(graph))
    assert [t.name for t in result.launching] == [t.name for t in graph.launching]


def names(graph: TaskGraph) -> list[str]:
    return [task.name for task in graph.tasks]


def test_the_longer_branch_of_a_fork_is_launched_first() -> None:
    def program(x: Tensor) -> Tensor:
        a = x.exp()
        short = a.relu()
        long = a.sigmoid().tanh().cos()
        return short + long

    order = names(schedule_of(program, torch.randn(2)))
    assert order == ["exp", "sigmoid", "tanh", "cos", "relu", "add"]


def test_a_view_comes_right_before_its_first_use() -> None:
    def program(x: Tensor) -> Tensor:
        a = x.exp()
        view = a.view(-1)
        return a.relu().sum() + view.cos()

    order = names(schedule_of(program, torch.randn(2, 2)))
    assert order.index("view") + 1 == order.index("cos")


def test_items_of_a_result_come_right_behind_it() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(1)
        return values.relu(), indices + 1

    tasks: tuple[Task, ...] = schedule_of(program, torch.randn(2)).tasks
    assert [task.name for task in tasks[:3]] == ["topk", "getitem", "getitem_1"]
    assert tasks[2].frees == ("topk",)


def test_items_come_in_the_order_of_the_results_wherever_they_were() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.split(1)

    graph = traced(program, torch.randn(3)).graph
    split, *items = graph.tasks
    for order in permutations(items):
        made = ordered(graph.replace_tasks([split, *order]))
        assert list(made.tasks) == [split, *items]
