"""What Dynamo's code passes to its graph in a call, and returns, seen without running the graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.runtime.compiled_graph import CompiledGraph
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.names import lookup

_innermost = lookup("torch._dynamo.eval_frame.innermost_fn")


@dataclass(frozen=True)
class GraphCall:
    """A call of Dynamo's code, in which empty tensors replaced what its graph returns.

    Attributes:
        program: the graph's program.
        inputs: what the code passed to it.
        outputs: the empty tensors.
        returned: what the code returned.
    """

    program: Boxed
    inputs: Sequence[Any]
    outputs: Sequence[Tensor]
    returned: object


def graph_call(code: FunctionType, graph: str, example: Arguments) -> GraphCall:
    """Calls Dynamo's code without running its graph.

    Args:
        code: Dynamo's code, without effects besides those of its graph.
        graph: the global name by which it calls its graph.
        example: the arguments.

    Raises:
        UnsupportedError: the graph was not called yet, AOTAutograd may do more in a call of it than
            to call its program, or the code does not call it once.
    """
    compiled = _innermost(code.__globals__[graph])
    if not isinstance(compiled, CompiledGraph) or compiled.program is None:
        raise UnsupportedError(
            "AOTAutograd may do more in a call than to call the program, as it does if the model "
            "writes to its buffers or inputs, or returns views of inputs"
        )
    calls: list[Sequence[Any]] = []
    outputs = [torch.empty(0, device="cpu") for _ in range(compiled.n_outputs)]

    def record(*args: Any) -> Sequence[Tensor]:
        calls.append(args)
        return outputs

    run = with_graph(code, graph, record, code.__closure__ or ())
    returned = run(*example.args, **example.kwargs)
    if len(calls) != 1:
        raise UnsupportedError(f"it calls its graph {len(calls)} times")
    return GraphCall(compiled.program, calls[0], outputs, returned)


def with_graph(
    code: FunctionType, graph: str, call: Callable[..., Any], cells: tuple[CellType, ...]
) -> FunctionType:
    """The same code, but with another function in the place of its graph, and other cells."""
    return FunctionType(code.__code__, code.__globals__ | {graph: call}, code.__name__, None, cells)
