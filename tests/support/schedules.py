"""Scheduled graphs for tests of stages after the passes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.ir.dependencies import hazards
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.pipeline import Policy, passes_for, schedule
from nimble_fx.tracing.aten_to_tasks import Traced, trace
from tests.strategies import task_graphs


def scheduled(
    graph: TaskGraph, policy: Policy = "nimble", max_streams: int | None = None
) -> TaskGraph:
    """The graph after all passes."""
    return schedule(graph, passes_for(policy, max_streams))


@st.composite
def schedules(draw: st.DrawFn, max_tasks: int = 14) -> TaskGraph:
    """Scheduled graphs, by any policy, with and without a limit and an urgent stream."""
    policy: Policy = draw(st.sampled_from([*["nimble"] * 7, "serial"]))
    limit = draw(st.sampled_from([None, None, None, 2, 3, 1]))
    graph = draw(task_graphs(max_tasks))
    made = scheduled(overwriting(graph) if draw(st.booleans()) else graph, policy, limit)
    return replace(made, urgent=draw(st.sampled_from([None, *range(made.n_streams)])))


def waiting_schedules(max_tasks: int = 14) -> st.SearchStrategy[TaskGraph]:
    """Schedules in which a task waits for another stream: most that are drawn have one stream."""
    return schedules(max_tasks).filter(lambda graph: any(task.waits for task in graph.tasks))


def overwriting(graph: TaskGraph) -> TaskGraph:
    """The graph with in-place tasks that do not read what they write, as `copy_` and `zero_`."""
    tasks = [t.updated(reads=tuple(s for s in t.reads if s not in t.writes)) for t in graph.tasks]
    after = hazards(task for task in tasks if task.launches)
    return graph.replace_tasks(t.updated(after=after.get(t.name, ())) for t in tasks)


def aten_graph(function: Callable[..., Any], *inputs: Any, functional: bool = True) -> GraphModule:
    """The ATen graph of a function, with fake tensors in `meta["val"]`."""
    if functional:
        function = torch.func.functionalize(function, remove="mutations")
    gm: GraphModule = make_fx(function, tracing_mode="fake")(*inputs)
    return gm


def traced(function: Callable[..., Any], *inputs: Any, functional: bool = True) -> Traced:
    """The task graph of a function."""
    return trace(aten_graph(function, *inputs, functional=functional), function.__name__)


def schedule_of(function: Callable[..., Any], *inputs: Any) -> TaskGraph:
    """A function's graph after all passes; what it overwrites stays overwritten."""
    return scheduled(traced(function, *inputs, functional=False).graph)


def two_branches(x: Tensor) -> Tensor:
    """A program that has a schedule on two streams, with one wait."""
    return torch.relu(x) + torch.sigmoid(x)


def branchy() -> TaskGraph:
    """The schedule of `two_branches`."""
    return schedule_of(two_branches, torch.randn(2, 2))
