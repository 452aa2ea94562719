"""Gives dimensions of size 1 the strides that PyTorch's shape functions promise, by views."""

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.layout import Layout
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.leaves import tensors_of
from nimble_fx.torch_internals.memory_formats import inverse_order
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten


def restride(graph: Graph, node: Node, promised: Layout, found: Sequence[int]) -> None:
    """Gives a value the strides of its fake tensor, from which dimensions of size 1 may differ.

    A dimension that `unsqueeze` adds has the stride of a contiguous tensor. Nothing changes if the
    promised strides are of no order of dimensions, and the graph returns what it did, as in eager.
    Of an image of a single pixel this is done only for operators that make an image of several
    pixels of it, at once or after others: squeeze-and-excitation blocks have many of them.

    Args:
        graph: is changed.
        node: the value.
        promised: the layout of its fake tensor.
        found: its strides.
    """
    order, users = promised.order, _users_of_format(node)
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


def _users_of_format(node: Node) -> set[Node]:
    """The operators whose results depend on a value's memory format."""
    users = {user for user in node.users if user.op != "output"}
    if not any(each.has_one_pixel for each in _layouts(node)):
        return users
    return {user for user in users if _depends_on_format(user) and _leads_to_pixels(user)}


def _depends_on_format(node: Node) -> bool:
    """Whether the strides of its results may depend on those of a single pixel that it reads.

    An elementwise operator of several tensors chooses between their strides. What one of a single
    tensor returns is restrided itself.
    """
    return not _is_by_element(node) or len(node.all_input_nodes) > 1


def _leads_to_pixels(node: Node) -> bool:
    """Whether an operator, or one after it, makes an image of several pixels of single pixels."""
    seen, left = {node}, [node]
    while left:
        user = left.pop()
        layouts = _layouts(user)
        if any(each.has_one_pixel for each in layouts):
            left += user.users.keys() - seen
            seen |= user.users.keys()
        elif not _is_by_element(user) and any(each.is_image for each in layouts):
            return True
    return False


def _is_by_element(node: Node) -> bool:
    """Whether it is an elementwise operator or a view.

    Single pixels, which these expand, do not decide on the strides of their results.
    """
    target = node.target
    return isinstance(target, OpOverload) and (
        is_view(target) or torch.Tag.pointwise in target.tags
    )


def _layouts(node: Node) -> list[Layout]:
    dense = [each for each in tensors_of(node) if each.layout is torch.strided]
    return [layout for layout in map(Layout.of, dense) if layout is not None]


def _permuted(graph: Graph, node: Node, order: Sequence[int]) -> Node:
    if list(order) == sorted(order):
        return node
    return call(graph, node, _aten.permute.default, node, order)
