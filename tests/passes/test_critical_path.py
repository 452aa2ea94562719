"""Scheduling by cost: legal, never slower than one stream, on no more streams than help."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.cost.given_costs import GivenCosts
from nimble_fx.cost.roofline import Roofline
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.passes.critical_path import (
    CriticalPath,
    most_critical_stream,
    with_direct_waits,
)
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.pipeline import passes_for, schedule
from nimble_fx.scheduling.list_schedule import Workload, list_schedule
from nimble_fx.simulation.discrete_event import Span, Timeline
from nimble_fx.simulation.schedule_model import predict
from nimble_fx.verify import verify
from tests.strategies import task_graphs
from tests.strategies.costs import cost, device, given_costs
from tests.support.schedules import traced


def makespan_us(scheduled: TaskGraph, model: GivenCosts) -> float:
    return predict(scheduled, model.costs, model.device).makespan_us


@given(task_graphs(), st.integers(1, 5), st.data())
def test_it_makes_a_legal_schedule_of_any_graph_on_at_most_so_many_streams(
    graph: TaskGraph, limit: int, data: st.DataObject
) -> None:
    policy = CriticalPath(data.draw(given_costs(graph)), limit)
    made = schedule(graph, passes_for(policy, limit))
    verify(made, graph)
    streams = {task.stream for task in made.launching}
    assert streams == set(range(made.n_streams))
    assert made.n_streams <= limit
    draws = [task.index for task in made.tasks if task.ordered]
    assert draws == sorted(draws)


@given(task_graphs(), st.data())
def test_it_is_never_predicted_slower_than_one_stream(
    graph: TaskGraph, data: st.DataObject
) -> None:
    model = data.draw(given_costs(graph))
    made = schedule(graph, passes_for(CriticalPath(model), None))
    serial = sum(each.us for each in model.costs.values())
    assert makespan_us(made, model) <= serial * (1 + 1e-9)


@given(task_graphs(), st.data())
def test_on_one_stream_launches_keep_program_order(graph: TaskGraph, data: st.DataObject) -> None:
    made = CriticalPath(data.draw(given_costs(graph)), 1)(ReduceEdges()(graph))
    assert [t.name for t in made.launching] == [t.name for t in graph.launching]


@given(task_graphs(), st.data())
def test_waits_that_others_imply_take_no_time(graph: TaskGraph, data: st.DataObject) -> None:
    model = data.draw(given_costs(graph))
    made = CriticalPath(model)(ReduceEdges()(graph))
    assume(made.n_streams > 1)
    direct, inserted = with_direct_waits(made), InsertWaits()(made)
    assert makespan_us(direct, model) == pytest.approx(makespan_us(inserted, model))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_there_are_no_more_streams_than_the_device_has(n: int) -> None:
    graph = ReduceEdges()(traced(six_branches, torch.randn(4)).graph)
    costs = {task.name: cost(10.0) for task in graph.launching}
    assert CriticalPath(GivenCosts(device(max_streams=n), costs))(graph).n_streams == n


def six_branches(x: Tensor) -> Tensor:
    branches = [x.sin(), x.cos(), x.tan(), x.exp(), x.erf(), x.abs()]
    return torch.stack(branches)


@pytest.mark.parametrize(("share", "n_streams"), [(1.0, 1), (0.5, 2), (0.25, 6), (0.0, 6)])
def test_no_stream_is_opened_that_does_not_help(share: float, n_streams: int) -> None:
    graph = ReduceEdges()(traced(six_branches, torch.randn(4)).graph)
    costs = {task.name: cost(10.0, share) for task in graph.launching}
    costs["stack"] = cost(0.5)
    made = CriticalPath(GivenCosts(device(event_us=0.1), costs))(graph)
    assert made.n_streams == n_streams


def fork(x: Tensor) -> Tensor:
    a = x.exp()
    short = a.relu()
    return short + a.sigmoid().tanh().cos()


def test_the_path_that_takes_longest_keeps_its_stream_and_is_launched_first() -> None:
    graph = ReduceEdges()(traced(fork, torch.randn(2)).graph)
    costs = {task.name: cost(2.0) for task in graph.launching}
    made = CriticalPath(GivenCosts(device(), costs))(graph)
    assert {t.name: t.stream for t in made.launching if t.stream} == {"relu": 1}
    costs["relu"] = cost(20.0)
    made = CriticalPath(GivenCosts(device(), costs))(graph)
    streams = {task.name: task.stream for task in made.launching}
    assert streams == {"exp": 0, "relu": 0, "sigmoid": 1, "tanh": 1, "cos": 1, "add": 0}
    assert [task.name for task in made.launching][:2] == ["exp", "relu"]


@given(task_graphs(), st.data())
def test_without_priorities_the_schedule_is_the_same(graph: TaskGraph, data: st.DataObject) -> None:
    model = data.draw(given_costs(graph))
    made = CriticalPath(model)(ReduceEdges()(graph))
    equal = CriticalPath(model, priorities=False)(ReduceEdges()(graph))
    assert equal.urgent is None
    assert equal.tasks == made.tasks
    assert (made.urgent is None) == (made.n_streams <= 1)


@given(task_graphs(), st.permutations(range(20)))
def test_the_stream_that_is_longest_on_the_longest_path_is_urgent(
    graph: TaskGraph, exponents: list[int]
) -> None:
    """Of networkx; no two paths are of one length where times are different powers of two."""
    us = {task.name: 2.0**i for task, i in zip(graph.launching, exponents, strict=False)}
    costs = {name: cost(each, 0.0, 0.0) for name, each in us.items()}
    made = CriticalPath(GivenCosts(device(event_us=0.0), costs))(ReduceEdges()(graph))
    assume(made.n_streams > 1)
    lengths = made.to_networkx()
    for s in range(made.n_streams):
        in_turn = [task.name for task in made.launching if task.stream == s]
        lengths.add_edges_from(pairwise(in_turn))
    for one, other in lengths.edges:
        lengths.edges[one, other]["us"] = us[one]
    for name in us:
        lengths.add_edge(name, "the end", us=us[name])
    *path, _ = nx.dag_longest_path(lengths, weight="us")
    assert made.urgent is not None
    assert made.by_name[max(path, key=us.__getitem__)].stream == made.urgent


@pytest.mark.parametrize(
    ("us", "urgent"),
    [
        ({"exp": 1.0, "relu": 1.0, "sigmoid": 5.0, "add": 1.0}, 1),
        ({"exp": 3.0, "relu": 3.0, "sigmoid": 5.0, "add": 1.0}, 0),
        ({"exp": 1.0, "relu": 0.0, "sigmoid": 2.0, "add": 1.0}, 0),  # as long: the first
        ({"exp": 0.0, "relu": 0.0, "sigmoid": 0.0, "add": 0.0}, 0),
    ],
)
def test_time_counts_and_not_tasks(us: dict[str, float], urgent: int) -> None:
    streams = {"exp": 0, "relu": 0, "sigmoid": 1, "add": 0}
    graph = traced(lambda x: x.exp().relu() + x.sigmoid(), torch.randn(2)).graph
    graph = graph.with_streams(streams)
    spans, end, behind = [], 0.0, None
    for name in streams:
        spans.append(Span(name, "", end, end + us[name], behind))
        end, behind = end + us[name], name
    assert most_critical_stream(graph, Timeline(tuple(spans), 0.0)) == urgent


@pytest.mark.parametrize("old", [0, 7])
def test_a_stream_that_was_urgent_before_is_so_no_longer(old: int) -> None:
    graph = replace(ReduceEdges()(traced(fork, torch.randn(2)).graph), urgent=old)
    costs = {task.name: cost(2.0) for task in graph.launching}
    model = GivenCosts(device(), costs)
    assert CriticalPath(model, priorities=False)(graph).urgent is None
    assert CriticalPath(model, 1)(graph).urgent is None
    assert CriticalPath(model)(graph).urgent == 0
    assert AssignStreams()(graph).urgent is None


def test_a_roofline_will_do() -> None:
    graph = ReduceEdges()(traced(six_branches, torch.randn(4)).graph)
    assert CriticalPath(Roofline(device()))(graph).n_streams > 1


def draws(x: Tensor) -> tuple[Tensor, ...]:
    a, b = torch.rand_like(x), torch.rand_like(x)
    return torch.bernoulli(a), torch.bernoulli(b), torch.rand_like(x)


def test_a_plan_that_the_order_of_draws_spoils_is_given_up() -> None:
    """The last draw starts sooner than planned, beside one that fills the device as it does."""
    graph = ReduceEdges()(traced(draws, torch.rand(2)).graph)
    assert all(task.ordered for task in graph.launching)
    figures = [(2, 0.0, 1.0), (10, 1.0, 1.0), (1, 0.1, 1.0), (1, 0.0, 0.5), (10, 1.0, 1.0)]
    names = (task.name for task in graph.launching)
    costs = {name: cost(*each) for name, each in zip(names, figures, strict=True)}
    model = GivenCosts(device(event_us=2.0), costs)
    assert list_schedule(Workload(graph, costs, 2.0), 2).end_us < 24
    assert CriticalPath(model)(graph).n_streams == 1
