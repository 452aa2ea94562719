"""Metadata that AOTAutograd has besides the graph: size hints, and the kinds of outputs."""

import torch
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.torch_internals.dynamo.names import (
    OutputType,
    SubclassCreationMeta,
    ViewAndMutationMeta,
)
from nimble_fx.torch_internals.symbolic import hint


def size_hints(gm: GraphModule) -> dict[str, int]:
    """The values of the symbolic sizes of a graph's inputs in the call that it is compiled for."""
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    shapes = [value.shape if isinstance(value, Tensor) else (value,) for value in values]
    sizes = [n for shape in shapes for n in shape if isinstance(n, torch.SymInt)]
    hints = {str(size.node.expr): hint(size) for size in sizes}
    return {symbol: int(value) for symbol, value in hints.items() if value is not None}


def n_user_outputs(metadata: ViewAndMutationMeta | None) -> int | None:
    """How many outputs of a forward graph are the user's, not saved tensors; None if unknown.

    It is unknown with tensor subclasses: AOTAutograd counts their outputs, not the graph's.
    """
    if metadata is None:
        return None
    kinds = [*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]
    if any(isinstance(kind, SubclassCreationMeta) for kind in kinds):
        return None
    return len(metadata.tokens) + metadata.num_forward


def returns_views_of_inputs(metadata: ViewAndMutationMeta | None) -> bool:
    """Whether an output may be a view of an input, which AOTAutograd regenerates from it."""
    if metadata is None:
        return True
    return any(info.output_type is OutputType.alias_of_input for info in metadata.output_info)


def has_effects(metadata: ViewAndMutationMeta | None) -> bool:
    """Whether AOTAutograd may do more in a call than its arguments and results show.

    It may write to inputs, set the grad mode, or mark dimensions of outputs as dynamic.
    """
    if metadata is None or metadata.grad_enabled_mutation is not None or metadata.dynamic_outputs:
        return True
    return any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
