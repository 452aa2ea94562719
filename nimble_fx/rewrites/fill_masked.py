"""Fills the elements that a mask selects without waiting for the device.

On a GPU an assignment to `y[mask]` first counts the elements that the mask selects, for which the
host waits, unless PyTorch reads the value on the host. A CUDA graph can have neither.

Before: index_put(y, [mask], c); masked_fill(y, mask, c), of a constant c with one element
After:  masked_fill(y, mask, 2.0)
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.memory_formats import contiguous_order, inverse_order
from nimble_fx.torch_internals.symbolic import are_known, are_same_sizes
from nimble_fx.tracing.constant_folding import Place

_aten = torch.ops.aten


def fill_masked(gm: GraphModule, place: Place) -> GraphModule:
    """Replaces assignments of a constant to the elements that a mask selects.

    Requires: an assignment by a boolean mask with the sizes of the indexed dimensions, whose result
    has no gaps. (For a value that is not constant it would need `where`, whose result may have the
    mask's strides.)
    Ensures: the same bits, and strides except in dimensions of size 1; no mask is counted.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, whose constants are folded; it is
            changed and returned.
        place: as for `fold_constants`: whether the values of a device's constants can be read now.
    """
    for target in (_aten.index_put.default, _aten.masked_fill.Tensor):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            _replace(gm, node, place)
    gm.recompile()
    return gm


def _replace(gm: GraphModule, node: Node, place: Place) -> None:
    """Changes the node, but not its fake tensor, by which its views identify their memory."""
    base, mask, value = cast(tuple[Node, Node, Node], node.args[:3])
    number = _number(gm, value, place)
    if number is None:
        return
    with gm.graph.inserting_before(node):
        if node.target is _aten.masked_fill.Tensor:
            node.target, node.args = _aten.masked_fill.Scalar, (base, mask, number)
        else:
            order = contiguous_order(node.meta["val"])
            is_default = order is not None and order == sorted(order)
            is_known = is_default or are_known(node.meta["val"].shape)
            if order is None or not is_known or not _has_mask(node):
                return
            _fill(gm.graph, node, order, number)
    if value.op == "get_attr" and not value.users:
        gm.graph.erase_node(value)


def _fill(graph: Graph, node: Node, order: list[int], number: complex) -> None:
    """Replaces an assignment, which keeps strides, by `masked_fill`, which returns new ones.

    Args:
        graph: is changed.
        node: the assignment.
        order: the order of dimensions in which the tensor is contiguous.
        number: the value.
    """
    base, mask = cast(Node, node.args[0]), _broadcast_mask(graph, node)
    fill = _aten.masked_fill.Scalar
    if order == sorted(order):
        node.target, node.args = fill, (base, mask, number)
        return
    mask = call(graph, node, _aten.expand.default, mask, [*base.meta["val"].shape])
    mask = call(graph, node, _aten.permute.default, mask, order)
    base = call(graph, node, _aten.permute.default, base, order)
    filled = call(graph, node, fill, base, mask, number)
    filled.meta["val"] = node.meta["val"].permute(order)
    node.target, node.args = _aten.permute.default, (filled, inverse_order(order))


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
    first, (mask,) = _indices(node)
    n_behind = cast(Node, node.args[0]).meta["val"].dim() - first - mask.meta["val"].dim()
    for _ in range(n_behind):
        mask = call(graph, node, _aten.unsqueeze.default, mask, -1)
    return mask


def _number(gm: GraphModule, value: Node, place: Place) -> float | complex | None:
    """The value of a constant; None if it is not constant, or cannot be read now."""
    if value.op != "get_attr":
        return None
    tensor: Tensor = attrgetter(str(value.target))(gm)
    if tensor.numel() != 1 or place(tensor.device) is None:
        return None
    with plain_eager_mode():
        number: float | complex = tensor.item()
    return number
