"""The task graphs of a model before any pass, so that one trace serves all policies."""

from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import make_boxed_func
from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.runtime.freeze import CaptureOptions
from nimble_fx.runtime.pool_group import Boxed


class Traces:
    """A backend for `torch.compile` that keeps each graph as it was traced, and runs it as it is.

    Attributes:
        graphs: in the order in which PyTorch had them compiled.
    """

    def __init__(self) -> None:
        self.__name__ = "traces"  # what torch's logs call it
        self.graphs: list[TaskGraph] = []

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lower(gm, example_inputs, _Traced(gm, self.graphs))


class _Traced(Compiler):
    def __init__(self, gm: GraphModule, graphs: list[TaskGraph]) -> None:
        super().__init__(gm, Options())
        self._graphs = graphs

    def build(self, gm: GraphModule, name: str, capture_options: CaptureOptions) -> Boxed:
        """The graph itself; keeps its trace."""
        self._graphs.append(self.trace(gm, name).traced.graph)
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]
