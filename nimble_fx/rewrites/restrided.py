"""Gives dimensions of size 1 the strides that PyTorch's shape functions promise, by views."""

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from nimble_fx.rewrites.layout import Layout
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.memory_formats import inverse_order

_aten = torch.ops.aten


def restride(graph: Graph, node: Node, promised: Layout, found: Sequence[int]) -> None:
    """Gives a value the strides of its fake tensor, from which dimensions of size 1 may differ.

    A dimension that `unsqueeze` adds has the stride of a contiguous tensor. Nothing changes if the
    promised strides are of no order of dimensions, and the graph returns what it did, as in eager.

    Args:
        graph: is changed.
        node: the value.
        promised: the layout of its fake tensor.
        found: its strides.
    """
    order, users = promised.order, {user for user in node.users if user.op != "output"}
    # A symbolic size may be 1 in the first call only.
    of_one = [type(size) is int and size == 1 for size in node.meta["val"].shape]
    differing = [a and b != c for a, b, c in zip(of_one, promised.strides, found, strict=True)]
    if order is None or not users or not any(differing):
        return
    with graph.inserting_before(node.next):
        value = _permuted(graph, node, order)
        for place in reversed(range(len(order))):
            if differing[order[place]]:
                value = call(graph, node, _aten.select.int, value, place, 0)
                value = call(graph, node, _aten.unsqueeze.default, value, place)
        value = _permuted(graph, value, inverse_order(order))
    value.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(value, lambda user: user in users)


def _permuted(graph: Graph, node: Node, order: Sequence[int]) -> Node:
    if list(order) == sorted(order):
        return node
    return call(graph, node, _aten.permute.default, node, order)
