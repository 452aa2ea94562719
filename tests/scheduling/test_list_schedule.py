"""List scheduling plans what the simulation predicts."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.cost.given_costs import GivenCosts
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.critical_path import apply_plan
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.scheduling.list_schedule import Plan, Workload, list_schedule, serial_schedule
from nimble_fx.simulation.schedule_model import predict
from tests.strategies import task_graphs
from tests.strategies.costs import cost, given_costs
from tests.support.schedules import traced


def simulated_us(graph: TaskGraph, plan: Plan, model: GivenCosts) -> float:
    made = InsertWaits()(apply_plan(graph, plan))
    return predict(made, model.costs, model.device).makespan_us


DELAYED_BY_DATA_ALONE = task_graphs(has_metadata=False)
"""With `unordered`, graphs in which no task waits for the launch of another alone."""


def unordered(graph: TaskGraph) -> TaskGraph:
    return graph.replace_tasks(replace(task, ordered=False) for task in graph.tasks)


@given(DELAYED_BY_DATA_ALONE, st.integers(2, 5), st.data())
def test_it_ends_when_a_simulation_says(graph: TaskGraph, n: int, data: st.DataObject) -> None:
    graph = ReduceEdges()(unordered(graph))
    model = data.draw(given_costs(graph))
    plan = list_schedule(Workload(graph, model.costs, model.device.event_us), n)
    assert plan.end_us == pytest.approx(simulated_us(graph, plan, model))


@given(task_graphs(), st.data())
def test_so_does_the_schedule_on_one_stream(graph: TaskGraph, data: st.DataObject) -> None:
    graph = ReduceEdges()(graph)
    model = data.draw(given_costs(graph))
    plan = serial_schedule(Workload(graph, model.costs, model.device.event_us))
    assert plan.end_us == pytest.approx(simulated_us(graph, plan, model))


@given(task_graphs(), st.integers(2, 5), st.data())
def test_streams_that_are_not_used_change_nothing(
    graph: TaskGraph, n: int, data: st.DataObject
) -> None:
    graph = ReduceEdges()(graph)
    model = data.draw(given_costs(graph))
    work = Workload(graph, model.costs, model.device.event_us)
    plan = list_schedule(work, n)
    if plan.n_streams < n:
        assert list_schedule(work, n + 3) == plan
    assert set(plan.streams.values()) == set(range(plan.n_streams))
    assert plan.n_streams <= max(1, graph.width)


@given(DELAYED_BY_DATA_ALONE, st.integers(2, 5), st.data())
def test_no_stream_idles_while_a_task_is_ready(
    graph: TaskGraph, n: int, data: st.DataObject
) -> None:
    """Graham's bound, which every such schedule keeps: at most 2 - 1/n times the optimum."""
    graph = ReduceEdges()(unordered(graph))
    model = data.draw(given_costs(graph, sharing=False))
    work = Workload(graph, model.costs, event_us=0.0)
    total = sum(cost.us for cost in model.costs.values())
    optimum_at_least = max([*work.urgency, total / n])
    assert list_schedule(work, n).end_us <= (2 - 1 / n) * optimum_at_least + 1e-9


def fork_and_join(x: Tensor) -> tuple[Tensor, ...]:
    late, early, between = x.exp(), x.sin(), x.cos()
    return late.tan(), late + early, between


def test_a_task_whose_stream_is_taken_goes_where_it_saves_a_wait() -> None:
    us = {"exp": 10.0, "sin": 2.0, "cos": 5.0, "tan": 20.0, "add": 1.0}
    graph = ReduceEdges()(traced(fork_and_join, torch.randn(2)).graph)
    plan = list_schedule(Workload(graph, {n: cost(t) for n, t in us.items()}, 0.3), 4)
    assert plan.streams == {"exp": 0, "cos": 1, "sin": 2, "tan": 0, "add": 2}


def two_draws(x: Tensor) -> Tensor:
    return torch.rand_like(x) + torch.rand_like(x)


def test_random_draws_are_launched_in_order_and_run_side_by_side() -> None:
    graph = ReduceEdges()(traced(two_draws, torch.randn(2)).graph)
    assert sum(task.ordered for task in graph.tasks) == 2
    costs = {task.name: cost(10.0) for task in graph.launching}
    plan = list_schedule(Workload(graph, costs, 0.3), 2)
    assert plan.end_us < 21


def two_after_one(x: Tensor) -> tuple[Tensor, ...]:
    late = x.exp()
    return late.tan(), late.neg(), x.sin(), x.cos()


def test_no_stream_is_opened_while_another_is_idle() -> None:
    us = {"exp": 10.0, "sin": 2.0, "cos": 5.0, "tan": 20.0, "neg": 1.0}
    graph = ReduceEdges()(traced(two_after_one, torch.randn(2)).graph)
    plan = list_schedule(Workload(graph, {n: cost(t) for n, t in us.items()}, 0.3), 4)
    assert plan.streams == {"exp": 0, "cos": 1, "sin": 2, "tan": 0, "neg": 1}
