"""List scheduling: what it plans is what a simulation says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.instances import GivenCosts
from nimble_fx.ir import TaskGraph
from nimble_fx.list_schedule import Plan, Workload, list_schedule, serial_schedule
from nimble_fx.passes.critical_path import carried_out
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.predict import predict
from tests.strategies import task_graphs
from tests.strategies.costs import given_costs


def simulated_us(graph: TaskGraph, plan: Plan, model: GivenCosts) -> float:
    made = InsertWaits()(carried_out(graph, plan))
    return predict(made, model.costs, model.device).makespan_us


def unordered(graph: TaskGraph) -> TaskGraph:
    return graph.replace_tasks(replace(task, ordered=False) for task in graph.tasks)


@given(task_graphs(), st.integers(2, 5), st.data())
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


@given(task_graphs(), st.integers(2, 5), st.data())
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
