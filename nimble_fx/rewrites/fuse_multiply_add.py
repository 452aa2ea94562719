"""Adds a product in the pass over memory that computes it.

Before: z = add(y, mul(a, b)), or z = add(y, mul(a, 0.9)), and the same with sub.
After: z = addcmul(y, a, b), or z = add(y, a, alpha=0.9).
"""

from collections.abc import Collection, Set
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.live_memory import MAX_GROWTH, LiveMemory
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.graph_modules import copied, erase_unused
from nimble_fx.tracing.escape_analysis import escaping_or_written

_aten = torch.ops.aten
_SIGNS: dict[Any, int] = {_aten.add.Tensor: 1, _aten.sub.Tensor: -1}


def fuse_multiply_add(gm: GraphModule, fixed: Collection[Node]) -> GraphModule:
    """The graph without products that are only added; the graph itself if it has none.

    Requires: tensors of one type, float32 or float64, and of one device; the product is not among
    `fixed`, and nothing but the sum, which does not scale it, reads it.
    Ensures: the same values up to rounding, of the same shapes and strides, and in program order
    hardly more memory at the peak (`LiveMemory`): factors may live longer. A graph that would need
    more is returned as it is.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        fixed: nodes that are computed outside of the calls.

    Cost: O(nodes + edges).
    """
    shared = escaping_or_written(gm.graph)
    sums = [node for node in gm.graph.nodes if node.target in _SIGNS]
    candidates = {each: _products(each, shared, fixed) for each in sums}
    if not any(candidates.values()):
        return gm
    fused = copied(gm)
    copies = dict(zip(gm.graph.nodes, fused.graph.nodes, strict=True))
    for total, products in candidates.items():
        for product in products:
            if _replace(fused, copies[total], copies[product]):
                break
    fused.recompile()
    most = (1 + MAX_GROWTH) * LiveMemory(gm.graph).least_peak
    return fused if LiveMemory(fused.graph).least_peak <= most else gm


def _products(total: Node, shared: Set[Node], fixed: Collection[Node]) -> list[Node]:
    """The products that a sum could compute, in the order in which they are tried."""
    y, x = cast(tuple[Any, Any], total.args)
    is_of_two = isinstance(x, Node) and isinstance(y, Node) and x is not y
    if not is_of_two or total in fixed or total.kwargs.get("alpha", 1) != 1:
        return []
    terms = [x, y] if total.target is _aten.add.Tensor else [x]
    return [
        term
        for term in terms
        if term.target is _aten.mul.Tensor
        and list(term.users) == [total]
        and term not in fixed
        and shared.isdisjoint(term.all_input_nodes)  # whose values in the meantime are others
        and isinstance(term.args[1], Node | int | float)
        and _are_alike(term, total)
    ]


def _are_alike(*nodes: Node) -> bool:
    """Whether some nodes and what they read are tensors of one type and device."""
    read = {*nodes, *(arg for node in nodes for arg in node.all_input_nodes)}
    values = [node.meta["val"] for node in read]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    kinds = {(value.dtype, value.device) for value in values}
    return len(kinds) == 1 and values[0].dtype in (torch.float32, torch.float64)


def _replace(gm: GraphModule, total: Node, product: Node) -> bool:
    """Computes a product in its sum; returns False if the result would be laid out otherwise."""
    (addend,) = (arg for arg in total.all_input_nodes if arg is not product)
    sign, (a, b) = _SIGNS[total.target], product.args
    with gm.graph.inserting_before(total):
        if isinstance(b, Node):
            value = {} if sign == 1 else {"value": sign}
            fused = call(gm.graph, total, _aten.addcmul.default, addend, a, b, **value)
        else:
            alpha = sign * float(cast(float, b))
            fused = call(gm.graph, total, _aten.add.Tensor, addend, a, alpha=alpha)
    is_same = _layout(fused) == _layout(total)
    if is_same:
        total.replace_all_uses_with(fused)
    erase_unused([fused, total, product])
    return is_same


def _layout(node: Node) -> object:
    value: Tensor = node.meta["val"]
    return value.shape, value.stride(), value.dtype
