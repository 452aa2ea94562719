"""Removes views that differ in nothing from the tensor that they view.

The derivative of an operator such as `sigmoid` uses its result. PyTorch's autograd detaches it when
it saves it, and again when it reads it.

Before: a = detach(y); b = detach(a); gradient = sigmoid_backward(tangent, b)
After:  gradient = sigmoid_backward(tangent, y)

The gradient of a linear layer's weight is transposed twice.

Before: a = mm(tangent, x); b = t(a); gradient = t(b)
After:  gradient = mm(tangent, x)
"""

import torch
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.escape_analysis import keeps_to_its_schema

_IDENTITIES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
_TRANSPOSE = torch.ops.aten.t.default


def remove_identity_views(gm: GraphModule, is_backward: bool = False) -> GraphModule:
    """Lets the readers of views that are equal to their tensors read the tensors themselves.

    Requires: a functional graph, in which no operator changes the sizes of a tensor. A joint graph
    must be split before: the partitioner may compute again what is not detached.
    Ensures: the same values. What is returned stays, and other views of it: the caller could tell
    one tensor from two, and a view of a detached tensor from a view of the tensor. A backward
    returns gradients, of which it tells only one from another and from its inputs.

    Args:
        gm: an ATen graph; it is changed and returned.
        is_backward: whether it computes gradients.
    """
    for node in list(gm.graph.nodes):
        base = _viewed(node)
        if base is None:
            continue
        if is_backward and base.op == "call_function" and not _is_returned(base):
            node.replace_all_uses_with(base, _is_output)
        node.replace_all_uses_with(base, _is_reader)
    _erase_unused(gm)
    gm.recompile()
    return gm


def _viewed(node: Node) -> Node | None:
    """The tensor that a view is equal to, if it is such a view."""
    if node.target in _IDENTITIES:
        return node.all_input_nodes[0]
    if node.target is _TRANSPOSE and node.all_input_nodes[0].target is _TRANSPOSE:
        return node.all_input_nodes[0].all_input_nodes[0]
    return None


def _is_returned(node: Node) -> bool:
    return any(map(_is_output, node.users))


def _is_output(user: Node) -> bool:
    return user.op == "output"


def _is_reader(user: Node) -> bool:
    """Whether a node reads elements, or is a view that may be removed too."""
    op = user.target
    if op in _IDENTITIES or not isinstance(op, OpOverload):
        return op in _IDENTITIES
    return keeps_to_its_schema(op) and not is_view(op)


def _erase_unused(gm: GraphModule) -> None:
    """Erases the views that nothing uses any more."""
    for node in reversed(gm.graph.nodes):
        if not node.users and (node.target in _IDENTITIES or node.target is _TRANSPOSE):
            gm.graph.erase_node(node)
