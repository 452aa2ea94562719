"""The floor is the longest path of the tasks' times, measured as the model runs."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from bench.measuring.lower_bound import floor, longest_path
from bench.measuring.task_times import TimedTasks
from nimble_fx.ir.task_graph import TaskGraph
from tests.strategies import task_graphs
from tests.support.models import Branchy


@given(task_graphs(), st.data())
def test_the_longest_path_is_networkxs(graph: TaskGraph, data: st.DataObject) -> None:
    cost = {task.name: data.draw(st.integers(1, 9)) for task in graph.launching}
    weighted: nx.DiGraph[str] = nx.DiGraph()
    weighted.add_nodes_from(["begin", *cost])
    weighted.add_edges_from(("begin", name, {"weight": n}) for name, n in cost.items())
    weighted.add_edges_from(
        (u, task.name, {"weight": cost[task.name]}) for task in graph.launching for u in task.after
    )
    expected = nx.dag_longest_path_length(weighted, weight="weight")
    assert longest_path(graph, {name: float(n) for name, n in cost.items()}) == expected


def test_each_task_has_a_time_and_the_model_computes_what_it_should() -> None:
    model, x = Branchy(), torch.randn(2, 4)
    timed = TimedTasks()
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend=timed)(x), model(x))
    assert nimble_fx.programs() == ()
    ((graph, seconds),) = timed.graphs
    assert set(seconds) == {task.name for task in graph.launching}
    assert all(value > 0 for value in seconds.values())
    found = floor(timed.graphs)
    assert (found.n_tasks, found.n_path) == (5, 3)
    assert found.parallelism == pytest.approx(5 / 3)
    assert found.path_seconds < found.total_seconds


def test_a_training_step_has_the_floor_of_both_graphs() -> None:
    model, x = Branchy(), torch.randn(2, 4)
    timed = TimedTasks()
    torch.compile(model, backend=timed)(x).sum().backward()
    compiled = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for mine, eagers in zip(compiled, model.parameters(), strict=True):
        torch.testing.assert_close(mine, eagers.grad)
    assert len(timed.graphs) == 2
    assert floor(timed.graphs).n_tasks == sum(len(graph.launching) for graph, _ in timed.graphs)


def test_what_a_model_keeps_is_written_once_however_often_tasks_are_timed() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n: Tensor
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.n.add_(1)
            return x + self.n

    model = Counts()
    with torch.no_grad():
        result = torch.compile(model, backend=TimedTasks())(torch.zeros(3))
    assert torch.equal(model.n, torch.ones(3))
    assert torch.equal(result, torch.ones(3))
