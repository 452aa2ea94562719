"""Fills the elements that a mask selects without waiting for the device.

On a GPU an assignment to `y[mask]` first counts the elements that the mask selects, for which the
host waits, unless PyTorch reads the value on the host. A CUDA graph can have neither.

Before: index_put(y, [mask], c); masked_fill(y, mask, c), of a constant c with one element
After:  masked_fill(y, mask, 2.0)

Before: index_put(y, [mask], v); masked_fill(y, mask, v), of a v that fits each selected place
After:  where(mask, v, y)
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.new_nodes import call, fake_call, without_gaps
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.memory_formats import contiguous_order, inverse_order
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.symbolic import are_same_sizes, known_number
from nimble_fx.tracing.constant_folding import Place

_aten = torch.ops.aten


def fill_masked(gm: GraphModule, place: Place) -> GraphModule:
    """Replaces assignments to the elements that a mask selects.

    Requires: a boolean mask with the sizes of the indexed dimensions; a value of the result's dtype
    that does not depend on how many elements are selected; and a result without gaps.
    Ensures: the same bits, and strides except in dimensions of size 1; no mask is counted.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, whose constants are folded; it is
            changed and returned.
        place: as for `fold_constants`: whether the values of a device's constants can be read now.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_aten.masked_fill.Tensor):
        _replace(gm, node, 0, place)
    for node in gm.graph.find_nodes(op="call_function", target=_aten.index_put.default):
        if _has_mask(node):
            _replace(gm, node, _n_behind(node), place)
    gm.recompile()
    return gm


def _replace(gm: GraphModule, node: Node, n_dimensions: int, place: Place) -> None:
    """Changes the node, but not its fake tensor, by which its views identify their memory.

    Args:
        gm: is changed.
        node: fills.
        n_dimensions: the number of dimensions in which the value may have other sizes than 1.
        place: as for `fill_masked`.
    """
    base, mask, given = cast(tuple[Node, Any, Node], node.args[:3])
    value = _value(gm, given, place)
    order = contiguous_order(node.meta["val"])
    if isinstance(value, Node) and not _fits(value, base, n_dimensions):
        return
    with gm.graph.inserting_before(node):
        if node.target is _aten.masked_fill.Tensor:
            node.target, node.args = _filled(gm.graph, node, base, mask, value)
        elif order is not None:
            value = _without_leading_ones(gm.graph, node, value, n_dimensions)
            _assign(gm.graph, node, order, value)
    if given.op == "get_attr" and not given.users:
        gm.graph.erase_node(given)


def _assign(graph: Graph, node: Node, order: list[int], value: Node | complex) -> None:
    """Replaces an assignment, which keeps strides, by an operator that returns new ones.

    Args:
        graph: is changed.
        node: the assignment.
        order: the order of dimensions in which the tensor is contiguous.
        value: a number, or a tensor that the selected places can be broadcast from.
    """
    base, mask = cast(Node, node.args[0]), _broadcast_mask(graph, node)
    if order == sorted(order):
        node.target, node.args = _filled(graph, node, base, mask, value)
        return
    several = [_permuted(graph, node, each, order) for each in (base, mask, value)]
    target, args = _filled(graph, node, *several)
    filled = call(graph, node, target, *args)
    filled.meta["val"] = node.meta["val"].permute(order)
    node.target, node.args = _aten.permute.default, (filled, inverse_order(order))


def _permuted(graph: Graph, node: Node, value: Any, order: list[int]) -> Any:
    """A tensor with all dimensions, in another order; a number itself."""
    if not isinstance(value, Node):
        return value
    for _ in range(len(order) - value.meta["val"].dim()):
        value = call(graph, node, _aten.unsqueeze.default, value, 0)
    return call(graph, node, _aten.permute.default, value, order)


def _without_leading_ones(graph: Graph, node: Node, value: Any, n_dimensions: int) -> Any:
    """A tensor of at most some dimensions; a number itself."""
    while isinstance(value, Node) and value.meta["val"].dim() > n_dimensions:
        value = call(graph, node, _aten.squeeze.dim, value, 0)
    return value


def _filled(
    graph: Graph, node: Node, base: Any, mask: Any, value: Any
) -> tuple[OpOverload, tuple[Any, ...]]:
    """The call that fills, whose result has default strides.

    Those of `where` are in the order of its first argument with an order, so these get one.
    """
    if not isinstance(value, Node):
        return _aten.masked_fill.Scalar, (base, mask, value)
    args = (mask, value, base)
    result = fake_call(_aten.where.self, *args)
    if contiguous_order(result) != list(range(result.dim())):
        args = (without_gaps(graph, mask, node), without_gaps(graph, value, node), base)
    return _aten.where.self, args


def _has_mask(node: Node) -> bool:
    """Whether an assignment fills the elements that one mask selects."""
    first, indices = _indices(node)
    if len(indices) != 1 or any(node.args[3:]) or indices[0].meta["val"].dtype != torch.bool:
        return False
    indexed = indices[0].meta["val"].shape
    sizes = cast(Node, node.args[0]).meta["val"].shape[first : first + len(indexed)]
    return bool(indexed) and are_same_sizes(sizes, indexed)


def _indices(node: Node) -> tuple[int, list[Node]]:
    """The number of dimensions before the first indexed one, and the indices."""
    several = cast(Sequence[Node | None], node.args[1])
    given = [index for index in several if index is not None]
    return several.index(given[0]) if given else 0, given


def _broadcast_mask(graph: Graph, node: Node) -> Node:
    """The mask, with dimensions of size 1 for the tensor's dimensions after the indexed ones."""
    _, (mask,) = _indices(node)
    for _ in range(_n_behind(node)):
        mask = call(graph, node, _aten.unsqueeze.default, mask, -1)
    return mask


def _n_behind(node: Node) -> int:
    """The number of the tensor's dimensions after the indexed ones."""
    first, (mask,) = _indices(node)
    return int(node.meta["val"].dim()) - first - int(mask.meta["val"].dim())


def _fits(value: Node, base: Node, n_dimensions: int) -> bool:
    """Whether a tensor has the dtype, and the same value for all elements that a mask selects."""
    filling, filled = value.meta["val"], base.meta["val"]
    is_alike = (filling.dtype, filling.device) == (filled.dtype, filled.device)
    leading = filling.shape[: max(0, filling.dim() - n_dimensions)]
    return is_alike and all(known_number(size) == 1 for size in leading)


def _value(gm: GraphModule, value: Node, place: Place) -> Node | complex:
    """The number if it is a constant that can be read now; else itself."""
    if value.op != "get_attr":
        return value
    tensor: Tensor = attrgetter(str(value.target))(gm)
    if tensor.numel() != 1 or place(tensor.device) is None:
        return value
    with plain_eager_mode():
        number: float | complex = tensor.item()
    return number
