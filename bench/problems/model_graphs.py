"""Traces a model once, so that all policies can schedule the same task graphs."""

from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import make_boxed_func
from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.program import Program
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.boxed import Boxed


class Traces:
    """A backend for `torch.compile` that keeps each traced graph, and runs it as traced.

    Attributes:
        graphs: the traced graphs, in the order in which PyTorch compiled them.
    """

    def __init__(self) -> None:
        self.__name__ = "traces"  # its name in PyTorch's logs
        self.graphs: list[TaskGraph] = []

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        options = Options(policy="serial", freeze=False, on_fallback="error", fold_weights=False)
        return lower(gm, example_inputs, Compiler(gm, options, _Unscheduled(options, self.graphs)))


class _Unscheduled(ThisMachine):
    """Runs graphs as traced, and adds their traces to a list."""

    def __init__(self, options: Options, graphs: list[TaskGraph]) -> None:
        super().__init__(options)
        self._graphs = graphs

    def runner(
        self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
    ) -> Boxed:
        """The graph itself; keeps its trace."""
        self._graphs.append(traced.graph)
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]
