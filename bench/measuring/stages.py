"""Times each stage of a compile, and checks the schedule against theory."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from time import perf_counter
from typing import Any, TypeVar
from unittest.mock import patch

import networkx as nx
import torch
from torch.fx import GraphModule

from bench.measuring.timing import synchronize
from bench.models.examples import Example
from nimble_fx import graph_compiler
from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.scheduled_program import file_name
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.passes.reinplace_pointwise import ReinplacePointwise
from nimble_fx.pipeline import Policy, passes_for, schedule
from nimble_fx.program import Program
from nimble_fx.this_machine import ThisMachine
from nimble_fx.tracing.aten_to_tasks import Traced, trace
from nimble_fx.verify import verify, verify_contents, verify_source

Seconds = dict[str, float]
"""Seconds by stage."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class FirstCall:
    """The first call of a freshly compiled model.

    Attributes:
        whole_seconds: the time of Dynamo, AOTAutograd, nimble_fx, and running the model once.
        nimble_seconds: the part from the ATen graph to the loaded module.
        retrace: traces the same ATen graph again, like the compiler.
        program: the compiled program.
    """

    whole_seconds: float
    nimble_seconds: float
    retrace: Callable[[], Traced]
    program: Program


def first_call(example: Example, policy: Policy = "nimble") -> FirstCall:
    """Compiles a model without any caches and calls it once, and times nimble_fx's part.

    That part begins with the last call to `trace`, and ends with the target's call to
    `on_program`.
    """
    traces: list[tuple[float, Callable[[], Traced]]] = []
    ends: list[tuple[float, Program]] = []

    def watched_trace(*args: Any, **kwargs: Any) -> Traced:
        traces.append((perf_counter(), partial(trace, *args, **kwargs)))
        return trace(*args, **kwargs)

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        options = Options(policy=policy, fold_weights=False)
        target = ThisMachine(options, lambda program: ends.append((perf_counter(), program)))
        return lower(gm, inputs, Compiler(gm, options, target))

    torch.compiler.reset()
    compiled = torch.compile(example.model, backend=backend)
    with patch.object(graph_compiler, "trace", watched_trace), torch.no_grad():
        start = perf_counter()
        compiled(*example.inputs)
        synchronize()
        whole_seconds = perf_counter() - start
    (*_, (began, retrace)), ((ended, program),) = traces, ends
    return FirstCall(whole_seconds, ended - began, retrace, program)


def time_traced(
    retrace: Callable[[], Traced], policy: Policy = "nimble"
) -> tuple[Seconds, TaskGraph]:
    """Seconds by stage from an ATen graph to a loaded module; the scheduled graph."""
    seconds: Seconds = {}
    traced = _timed(seconds, "trace", retrace)
    graph = _timed(seconds, "reinplace", partial(ReinplacePointwise(), traced.graph))
    _timed(seconds, "verify contents", partial(verify_contents, graph, traced.graph))
    rest, graph = time_graph(graph, policy)
    return seconds | rest, graph


def time_graph(graph: TaskGraph, policy: Policy = "nimble") -> tuple[Seconds, TaskGraph]:
    """Seconds by stage from a traced TaskGraph to a loaded module; the scheduled graph.

    The same steps as `nimble_fx.compiler` takes with its default options; the checks that follow
    each pass are timed as a stage of their own.
    """
    seconds: Seconds = {}
    began = perf_counter()

    def lap(stage: str) -> None:
        nonlocal began
        now = perf_counter()
        seconds[stage] = seconds.get(stage, 0.0) + now - began
        began = now

    graph = schedule(graph, passes_for(policy, None), lap)
    _timed(seconds, "verify", partial(verify, graph))
    source = _timed(seconds, "emit", partial(emit, graph))
    _timed(seconds, "verify source", partial(verify_source, source, graph))
    _timed(seconds, "load", lambda: load(source, f"nimble_fx/{file_name(graph.name, source)}"))
    return seconds, graph


def _timed(seconds: Seconds, stage: str, work: Callable[[], _T]) -> _T:
    start = perf_counter()
    result = work()
    seconds[stage] = perf_counter() - start
    return result


@dataclass(frozen=True)
class Theory:
    """The optimal counts for a schedule, which networkx computes from only the graph's edges.

    Attributes:
        n_fewest_edges: |E'|, the edges of the transitive reduction.
        n_matched: |M|, a maximum matching of those edges.
    """

    n_fewest_edges: int
    n_matched: int

    @property
    def n_waits_due(self) -> int:
        """The fewest waits with maximum concurrency."""
        return self.n_fewest_edges - self.n_matched


def theory(graph: TaskGraph) -> Theory:
    """The optimal counts by networkx. Takes seconds for 5,000 tasks, minutes for 20,000."""
    reduced = nx.transitive_reduction(graph.to_networkx())
    edges = [(("before", u), ("after", v)) for u, v in reduced.edges]
    bipartite: nx.Graph[tuple[str, str]] = nx.Graph(edges)
    top = {u for u, _ in edges}
    matching: Mapping[Any, Any] = nx.bipartite.hopcroft_karp_matching(bipartite, top)
    return Theory(len(edges), len(matching) // 2)


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The b of `seconds = a * sizes ** b`: a least-squares fit of the logarithms."""
    return statistics.linear_regression([*map(log, sizes)], [*map(log, seconds)]).slope
