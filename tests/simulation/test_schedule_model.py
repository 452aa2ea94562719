"""Queues get the schedule's order, waits and costs, and the host if it is unfrozen."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from hypothesis import given

from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES, Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.schedule_model import activities, predict
from tests.support.schedules import schedule_of, schedules, waiting_schedules

H100 = DEVICES["h100"]
ALONE = Device(name="no latency", sms=1, tflops=1, gbps=1, event_us=0.0)


def unit_costs(graph: TaskGraph, us: float = 8.0) -> dict[str, Cost]:
    """Tasks that take the same and share nothing."""
    return {task.name: Cost(us, 0, 0, 0.0, 0.0) for task in graph.launching}


@given(waiting_schedules())
def test_without_latency_and_sharing_a_run_is_the_longest_path_of_orders_and_queues(
    graph: TaskGraph,
) -> None:
    digraph: nx.DiGraph[str] = nx.DiGraph()
    last: dict[int | None, str] = {}
    for task in graph.launching:
        digraph.add_node(task.name)
        digraph.add_edges_from((name, task.name) for name in (*task.after, *task.waits))
        if task.stream in last:
            digraph.add_edge(last[task.stream], task.name)
        last[task.stream] = task.name
    n_longest = len(nx.dag_longest_path(digraph))
    timeline = predict(graph, unit_costs(graph), ALONE)
    assert timeline.makespan_us == pytest.approx(8.0 * n_longest)


@given(waiting_schedules())
def test_on_one_queue_a_run_takes_the_sum_whatever_the_streams(graph: TaskGraph) -> None:
    costs = Roofline(DEVICES["cpu"])(graph)
    total = sum(cost.us for cost in costs.values())
    assert predict(graph, costs, DEVICES["cpu"]).makespan_us == pytest.approx(total)


@given(waiting_schedules())
def test_each_task_runs_on_its_stream_in_launch_order_behind_what_it_waits_for(
    graph: TaskGraph,
) -> None:
    spans = {span.name: span for span in predict(graph, unit_costs(graph), H100).spans}
    for task in graph.launching:
        assert spans[task.name].queue == f"s{task.stream}"
        for name in task.waits:
            delay = spans[task.name].start_us - spans[name].end_us
            assert delay >= H100.event_us - 1e-9
        for name in task.after:
            assert spans[task.name].start_us >= spans[name].end_us - 1e-9


@given(waiting_schedules())
def test_the_end_is_when_stream_0_knows_of_all_streams(graph: TaskGraph) -> None:
    timeline = predict(graph, unit_costs(graph), H100)
    late = [span.end_us for span in timeline.spans if span.name in graph.joins]
    assert all(timeline.makespan_us >= end + H100.event_us - 1e-9 for end in late)


@given(schedules())
def test_unfrozen_each_task_waits_for_the_hosts_call_and_calls_come_in_launch_order(
    graph: TaskGraph,
) -> None:
    given = activities(graph, unit_costs(graph), H100, frozen=False)
    calls = [each.name for each in given if each.queue == "host" and each.us]
    assert calls == [f"host {task.name}" for task in graph.launching]
    slow = replace(H100, launch_us=1000.0)
    took = predict(graph, unit_costs(graph), slow, frozen=False).makespan_us
    n = len(graph.launching)
    assert 1000.0 * n + 8.0 * bool(n) <= took <= 1000.0 * n + 8.0 * n + 1.0


def test_more_streams_than_queues_take_turns() -> None:
    graph = schedule_of(lambda x: (x.exp(), x.sin(), x.cos()), torch.empty(4))
    assert graph.n_streams == 3
    two = replace(ALONE, max_streams=2)
    assert {each.queue for each in activities(graph, unit_costs(graph), two)} == {"s0", "s1"}
    assert predict(graph, unit_costs(graph), two).makespan_us == pytest.approx(16.0)
