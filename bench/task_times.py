"""How long each task of a model takes by itself, on the device that is there."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from bench.timing import gpu_stopwatch
from nimble_fx.arena import Boxed
from nimble_fx.compiler import Compiler, lower
from nimble_fx.freeze import Terms
from nimble_fx.ir import Ref, Task, TaskGraph
from nimble_fx.options import Options
from nimble_fx.pipeline import passes, schedule

SAMPLE_SECONDS = 5e-4
N_SAMPLES = 3
MAX_REPEATS = 50

TimedGraph = tuple[TaskGraph, dict[str, float]]
"""A graph as it was traced, with no order that a pass added, and seconds by launching task."""


class TimedTasks:
    """A backend for `torch.compile` that times each task while it runs the model, one by one.

    Tasks that are alike are timed once. On a CPU a time has the call of the operator in it; on a
    GPU it is that of the kernels alone, replayed from a CUDA graph.

    Attributes:
        graphs: each ATen graph that has run, in the order of their runs.
    """

    def __init__(self) -> None:
        self.__name__ = "timed_tasks"  # what torch's logs call it
        self.graphs: list[TimedGraph] = []
        self._known: dict[object, float] = {}

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lower(gm, example_inputs, _TimedGraphs(gm, self))

    def run(self, traced: TaskGraph, graph: TaskGraph, values: dict[str, Any]) -> list[Any]:
        """The graph's outputs; times its tasks.

        Args:
            traced: the graph before any pass.
            graph: the same on one stream, with frees.
            values: its inputs and constants by name; emptied as tasks free them.
        """
        seconds: dict[str, float] = {}
        for task in graph.tasks:
            args, kwargs = _given((task.args, dict(task.kwargs)), values)
            if task.launches:
                seconds[task.name] = self._seconds(task, args, kwargs)
            values[task.name] = task.target(*args, **kwargs)
            for name in task.frees:
                values.pop(name)
        self.graphs.append((traced, seconds))
        outputs: list[Any] = _given(list(graph.outputs), values)
        return outputs

    def _seconds(self, task: Task, args: Any, kwargs: Any) -> float:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        key = task.target, structure, tuple(map(_kind, leaves))
        if key not in self._known:
            if not set(task.writes) <= set(task.allocates):  # a time is no reason to change a model
                args, kwargs = pytree.tree_map_only(Tensor, torch.clone, (args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            on_gpu = task.type is not None and any(x.is_cuda for x in tensors)
            seconds = gpu_seconds if on_gpu else cpu_seconds
            self._known[key] = seconds(partial(task.target, *args, **kwargs))
        return self._known[key]


class _TimedGraphs(Compiler):
    """Runs the ATen graphs of one Dynamo graph task by task."""

    def __init__(self, gm: GraphModule, timed: TimedTasks) -> None:
        super().__init__(gm, Options())
        self._timed = timed

    def build(self, gm: GraphModule, name: str, terms: Terms) -> Boxed:
        """What times an ATen graph's tasks and returns its outputs."""
        traced = self.trace(gm, name).traced
        graph = schedule(traced.graph, passes("serial", None))
        names = [value.name for value in graph.inputs]

        def run(args: list[Any]) -> list[Any]:
            values = dict(traced.constants) | dict(zip(names, args, strict=True))
            args.clear()
            return self._timed.run(traced.graph, graph, values)

        run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return run


def cpu_seconds(call: Callable[[], object]) -> float:
    """The median of a few samples, each the mean of as many calls as take half a millisecond."""
    call()
    start = perf_counter()
    call()
    once = perf_counter() - start
    n = max(1, min(MAX_REPEATS, int(SAMPLE_SECONDS / max(once, 1e-7))))
    samples = []
    for _ in range(N_SAMPLES):
        start = perf_counter()
        for _ in range(n):
            call()
        samples.append((perf_counter() - start) / n)
    return median(samples)


def gpu_seconds(call: Callable[[], object]) -> float:
    """The same of a CUDA graph that has the call's kernels over and over."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph, caller = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            for _ in range(MAX_REPEATS):
                call()
    finally:
        torch.cuda.set_stream(caller)  # ending a broken capture leaves torch on the capture stream
    graph.replay()
    samples = []
    for _ in range(N_SAMPLES):
        stop = gpu_stopwatch()
        graph.replay()
        samples.append(stop() / MAX_REPEATS)
    return median(samples)


def _given(arguments: Any, values: dict[str, Any]) -> Any:
    return pytree.tree_map_only(Ref, lambda ref: values[ref.name], arguments)


def _kind(leaf: object) -> object:
    """What of an argument a kernel's time depends on."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device
    return type(leaf), leaf  # 1 is not 1.0
