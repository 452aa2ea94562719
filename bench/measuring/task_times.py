"""Times each task of a model on its device."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.cost.cold_values import cold_values
from nimble_fx.cost.signature import signature
from nimble_fx.cost.task_times import measured_times
from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.program import Program
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed

TimedGraph = tuple[TaskGraph, dict[str, float]]
"""A traced graph, before passes add orders, and the seconds of each launching task."""


class TimedTasks:
    """A backend for `torch.compile` that runs a model on one stream and times its tasks apart.

    On a CPU a time includes calling the operator; on a GPU it is only that of the kernels, replayed
    from a CUDA graph.

    Attributes:
        graphs: each ATen graph that has run, in order.
    """

    def __init__(self) -> None:
        self.__name__ = "timed_tasks"  # its name in PyTorch's logs
        self.graphs: list[TimedGraph] = []

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        options = Options(policy="serial", freeze=False, on_fallback="error", fold_weights=False)
        return lower(gm, example_inputs, Compiler(gm, options, _Timing(options, self.graphs)))


class _Timing(ThisMachine):
    """Times the tasks of each program, and adds the times to a list at each call."""

    def __init__(self, options: Options, graphs: list[TimedGraph]) -> None:
        unlisted: list[Program] = []  # these are not the user's programs
        super().__init__(options, unlisted.append)
        self._graphs = graphs

    def runner(
        self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
    ) -> Boxed:
        """The program, wrapped so that it records its runs."""
        timed = traced.graph, _seconds(traced.graph, traced.device)
        run = super().runner(gm, traced, program, capture)

        @boxed
        def noting(args: list[Any]) -> Any:
            self._graphs.append(timed)
            return run(args)

        return noting


def _seconds(graph: TaskGraph, device: DeviceRuntime) -> dict[str, float]:
    """The seconds of each launching task.

    Raises:
        UnsupportedError: a task cannot be timed; the message says why.
    """
    times, failed = measured_times(graph, device, {})
    if failed:
        raise UnsupportedError("; ".join(f"{kind}: {why}" for kind, why in failed.items()))
    types, cold = graph.types, cold_values(graph)
    return {task.name: times[signature(task, types, cold)].us / 1e6 for task in graph.launching}
