"""The ATen graphs that AOTAutograd makes of models for inference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch.fx import GraphModule

from nimble_fx.torch_internals.dynamo.names import TracingContext, aot_autograd


@dataclass
class InferenceGraph:
    """A model's ATen graph and the arguments of a call.

    Attributes:
        gm: the graph.
        static: the names of its inputs that are parameters and buffers.
        arguments: of the call that made it.
    """

    gm: GraphModule
    static: set[str]
    arguments: list[Any] = field(default_factory=list)


def inference_graph(
    model: nn.Module, *inputs: Any, rewrite: Callable[[GraphModule], GraphModule] = lambda gm: gm
) -> InferenceGraph:
    """The one graph of a model without gradients, rewritten."""
    torch.compiler.reset()
    found: list[InferenceGraph] = []

    def keep(gm: GraphModule, _: Sequence[Any]) -> Any:
        metadata = TracingContext.get().fw_metadata
        assert metadata is not None
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        rewritten = rewrite(gm)
        found.append(InferenceGraph(rewritten, {names[i] for i in metadata.static_input_indices}))

        def run(*arguments: Any) -> Any:
            found[-1].arguments[:] = arguments
            return rewritten(*arguments)

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(model, backend=backend, fullgraph=True)(*inputs)
    (graph,) = found
    return graph
