"""Checks that a graph of Inductor's kernels is the same program to its callers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.errors import UnsupportedError
from nimble_fx.torch_internals.names import OpOverload, pytree
from nimble_fx.torch_internals.operators import schema_of
from nimble_fx.torch_internals.storages import storage_key


def check_same_program(before: Graph, after: Graph) -> None:
    """Compares what is not a value: layouts and sharing of memory of outputs, random numbers.

    Args:
        before: an ATen graph with fake tensors in `meta["val"]`.
        after: another with the same inputs and constants.

    Raises:
        UnsupportedError: they differ.
    """
    _check_outputs(inputs_and_constants(after), *map(_returned, (before, after)))
    if _draws(before) != _draws(after):
        raise UnsupportedError("Inductor draws random numbers in another order, or by other means")


def inputs_and_constants(graph: Graph) -> list[Node]:
    """The inputs of a graph in order, and then its constants."""
    return [*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr")]


def _returned(graph: Graph) -> list[Any]:
    values: Any = graph.output_node().args[0]
    return list(values)


def _check_outputs(inputs: Sequence[Node], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raises an error if an output differs in more than its values, or shares other memory."""
    for one, other in zip(before, after, strict=True):
        if _layout(one) != _layout(other):
            raise UnsupportedError(f"Inductor returns {_layout(other)} where {_layout(one)} was")
    if _sharing([*inputs, *before]) != _sharing([*inputs, *after]):
        raise UnsupportedError("Inductor returns tensors that share other memory than before")


def _sharing(values: Sequence[Any]) -> list[int]:
    """For each value the position of the first one on its memory."""
    tensors = [value.meta["val"] if isinstance(value, Node) else None for value in values]
    keys = [storage_key(x) if isinstance(x, Tensor) else str(i) for i, x in enumerate(tensors)]
    return [keys.index(key) for key in keys]


def _layout(value: Any) -> Any:
    """What a caller sees of an output besides its values."""
    tensor = value.meta["val"] if isinstance(value, Node) else value
    if not isinstance(tensor, Tensor):
        return tensor
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _draws(graph: Graph) -> list[Any]:
    """The operators that draw random numbers, in order, with the layouts of what they draw."""
    return [
        (node.target, [_layout(value) for value in pytree.tree_leaves(node.meta["val"])])
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and _is_draw(node, node.target)
    ]


def _is_draw(node: Node, op: OpOverload) -> bool:
    """Whether a call draws random numbers: attention without dropout does not."""
    drops = [i for i, p in enumerate(schema_of(op).arguments) if p.name == "dropout_p"]
    values = [node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p") for i in drops]
    return torch.Tag.nondeterministic_seeded in op.tags and values not in ([0.0], [None])
