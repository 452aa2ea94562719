"""Checks that callers see no difference between a graph and that of Inductor's kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.errors import UnsupportedError
from nimble_fx.torch_internals.names import OpOverload, pytree
from nimble_fx.torch_internals.operators import draws
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.torch_internals.symbolic import are_guarded_same, is_guarded_same
from nimble_fx.tracing.source_lines import line_of, source_of

_SIZES = (int, torch.SymInt)
_SAME_DRAWS = {  # by Inductor's decompositions, since PyTorch 2.11
    torch.ops.aten.rand_like.default: torch.ops.aten.rand.default,
    torch.ops.aten.randn_like.default: torch.ops.aten.randn.default,
    torch.ops.aten.bernoulli.p: torch.ops.aten.bernoulli_.float,
}


def check_same_interface(before: Graph, after: Graph) -> None:
    """Compares all but values: layouts and memory sharing of outputs, and random draws.

    Args:
        before: an ATen graph with fake tensors in `meta["val"]`.
        after: another with the same inputs and constants.

    Raises:
        UnsupportedError: they differ.
    """
    _check_outputs(inputs_and_constants(after), *map(_returned, (before, after)))
    drawn, redrawn = map(_draws, (before, after))
    if len(drawn) != len(redrawn) or not all(map(_is_same, drawn, redrawn)):
        raise UnsupportedError("Inductor draws random numbers in another order, or by other means")


def inputs_and_constants(graph: Graph) -> list[Node]:
    """The inputs of a graph in order, and then its constants."""
    return [*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr")]


def _returned(graph: Graph) -> list[Any]:
    values: Any = graph.output_node().args[0]
    return list(values)


def _check_outputs(inputs: Sequence[Node], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raises an error if an output differs in more than values, or shares different memory."""
    for output, one, other in zip(before, map(_value, before), map(_value, after), strict=True):
        if not _is_same(one, other):
            raise _error(output, f"returns {_shown(other)} where {_shown(one)} was")
    places = zip(_sharing([*inputs, *before]), _sharing([*inputs, *after]), strict=True)
    moved = [i - len(inputs) for i, (one, other) in enumerate(places) if one != other]
    if moved:
        i, output = moved[0], before[moved[0]]
        raise _error(
            output,
            f"returns output {i}, {output}, in memory of an input, a constant or another output "
            "where it had its own, or the other way round",
        )


def _error(output: Any, what: str) -> UnsupportedError:
    """The error for an output; with the user's line if an operator computes it."""
    if not isinstance(output, Node):
        return UnsupportedError(f"Inductor {what}")
    message = f"Inductor {what} [{line_of(output)}]"
    return UnsupportedError(message, output.name, source_of(output))


def _sharing(values: Sequence[Any]) -> list[int]:
    """For each value, the position of the first value that shares its memory."""
    first: dict[str | int, int] = {}
    return [first.setdefault(_memory(value) or i, i) for i, value in enumerate(values)]


def _memory(value: Any) -> str | None:
    """A key of a value's memory; None if it has none."""
    if not isinstance(value, Node) or not isinstance(value.meta["val"], Tensor):
        return None
    if any(type(size) is int and size == 0 for size in value.meta["val"].shape):
        return None
    if value.target is torch.ops.aten.lift_fresh_copy.default:
        return value.name  # a copy, although its fake tensor has the constant's memory
    return str(storage_key(value.meta["val"]))


def _value(value: Any) -> Any:
    """A node's fake tensor or size; a literal itself."""
    return value.meta["val"] if isinstance(value, Node) else value


def _is_same(one: Any, other: Any) -> bool:
    """Whether two outputs are the same for a caller, except for the values of tensors.

    If that depends on symbols, PyTorch adds guards on them.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_kind = (one.dtype, one.device) == (other.dtype, other.device)
        same_shape = same_kind and are_guarded_same(one.shape, other.shape)
        return same_shape and are_guarded_same(one.stride(), other.stride())
    if type(one) in _SIZES and type(other) in _SIZES:
        return is_guarded_same(one, other)
    return type(one) is type(other) and one == other


def _shown(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.device


def _draws(graph: Graph) -> list[Any]:
    """The operators that draw random numbers, in order, each with the tensor that it draws."""
    return [
        value
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and draws(node.target, node.args, node.kwargs)
        for value in (_draw(node.target), *pytree.tree_leaves(node.meta["val"]))
    ]


def _draw(op: OpOverload) -> OpOverload:
    """The canonical operator that draws the same numbers into a tensor of the same layout."""
    return _SAME_DRAWS.get(op, op)
