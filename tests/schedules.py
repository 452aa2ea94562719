"""Scheduled graphs for tests of what comes after the passes."""

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.ir import Task, TaskGraph
from nimble_fx.passes.assign_streams import Policy
from nimble_fx.passes.free_memory import FreeMemory
from nimble_fx.pipeline import passes, schedule
from nimble_fx.trace import Traced, trace
from tests.strategies import task_graphs


def scheduled(
    graph: TaskGraph, policy: Policy = "nimble", max_streams: int | None = None
) -> TaskGraph:
    """The graph after all passes."""
    return schedule(graph, passes(policy, max_streams))


@st.composite
def schedules(draw: st.DrawFn, max_tasks: int = 14) -> TaskGraph:
    """Scheduled graphs, by any policy, with and without a limit."""
    policy: Policy = draw(st.sampled_from(["nimble", "nimble", "nimble", "serial"]))
    limit = draw(st.sampled_from([None, None, 1, 2, 3]))
    return scheduled(draw(task_graphs(max_tasks)), policy, limit)


def interleaved(graph: TaskGraph, seed: int) -> TaskGraph:
    """The schedule in another launch order that its streams and events allow, picked by a seed.

    An asynchronous device may run the tasks in any of these orders. On the CPU, where the launch
    order is the order in which they run, this shows what a schedule leaves to chance.
    """
    choose, before = Random(seed), _orders(graph)
    order: dict[str, Task] = {}
    while len(order) < len(graph.tasks):
        ready = [n for n, earlier in before.items() if n not in order and earlier <= order.keys()]
        name = choose.choice(ready)
        order[name] = graph.by_name[name]
    return FreeMemory()(graph.replace_tasks(order.values()))


def _orders(graph: TaskGraph) -> dict[str, set[str]]:
    """The tasks that each comes after: on its stream, by events, by values, by random draws."""
    before = {t.name: {*t.waits, *t.uses} & graph.by_name.keys() for t in graph.tasks}
    for stream in range(graph.n_streams):
        for first, second in pairwise(t.name for t in graph.tasks if t.stream == stream):
            before[second].add(first)
    for first, second in pairwise(t.name for t in graph.tasks if t.ordered):
        before[second].add(first)
    return before


def aten_graph(function: Callable[..., Any], *inputs: Any, functional: bool = True) -> GraphModule:
    """The ATen graph of a function, with fake tensors in `meta["val"]`."""
    if functional:
        function = torch.func.functionalize(function, remove="mutations")
    gm: GraphModule = make_fx(function, tracing_mode="fake")(*inputs)
    return gm


def traced(function: Callable[..., Any], *inputs: Any, functional: bool = True) -> Traced:
    """The task graph of a function."""
    return trace(aten_graph(function, *inputs, functional=functional), function.__name__)
