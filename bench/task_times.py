"""How long each task of a model takes by itself, on the device that is there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from nimble_fx.arena import Boxed
from nimble_fx.compiler import Compiler, lower
from nimble_fx.cost.timing import cold_values, task_seconds
from nimble_fx.devices import Device
from nimble_fx.freeze import Terms
from nimble_fx.ir import Ref, TaskGraph
from nimble_fx.options import Options
from nimble_fx.pipeline import passes, schedule

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

    def run(self, timing: "_Timing", values: dict[str, Any]) -> list[Any]:
        """The graph's outputs; times its tasks.

        Args:
            timing: what is timed, and where.
            values: the graph's inputs and constants by name; emptied as tasks free them.
        """
        seconds: dict[str, float] = {}
        cold = cold_values(timing.traced)
        for task in timing.graph.tasks:
            args, kwargs = _given((task.args, dict(task.kwargs)), values)
            if task.launches:
                is_cold = tuple(name in cold for name in task.uses)
                leaves, structure = pytree.tree_flatten((args, kwargs))
                key = task.target, structure, tuple(map(_kind, leaves)), is_cold
                if key not in self._known:
                    self._known[key] = task_seconds(task, values, cold, timing.device)
                seconds[task.name] = self._known[key]
            values[task.name] = task.target(*args, **kwargs)
            for name in task.frees:
                values.pop(name)
        self.graphs.append((timing.traced, seconds))
        outputs: list[Any] = _given(list(timing.graph.outputs), values)
        return outputs


@dataclass(frozen=True)
class _Timing:
    """A graph before any pass, the same on one stream with frees, and where it runs."""

    traced: TaskGraph
    graph: TaskGraph
    device: Device


class _TimedGraphs(Compiler):
    """Runs the ATen graphs of one Dynamo graph task by task."""

    def __init__(self, gm: GraphModule, timed: TimedTasks) -> None:
        super().__init__(gm, Options())
        self._timed = timed

    def build(self, gm: GraphModule, name: str, terms: Terms) -> Boxed:
        """What times an ATen graph's tasks and returns its outputs."""
        unscheduled = self.trace(gm, name)
        traced = unscheduled.traced
        graph = schedule(traced.graph, passes("serial", None))
        timing = _Timing(traced.graph, graph, unscheduled.device)
        names = [value.name for value in graph.inputs]

        def run(args: list[Any]) -> list[Any]:
            values = dict(traced.constants) | dict(zip(names, args, strict=True))
            args.clear()
            return self._timed.run(timing, values)

        run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return run


def _given(arguments: Any, values: dict[str, Any]) -> Any:
    return pytree.tree_map_only(Ref, lambda ref: values[ref.name], arguments)


def _kind(leaf: object) -> object:
    """What of an argument a kernel's time depends on."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device
    return type(leaf), leaf  # 1 is not 1.0
