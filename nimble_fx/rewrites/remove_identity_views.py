"""Removes views that differ in nothing from the tensor that they view.

The derivative of an operator such as `sigmoid` uses its result. PyTorch's autograd detaches it when
it saves it, and again when it reads it.

Before: a = detach(y); b = detach(a); gradient = sigmoid_backward(tangent, b)
After:  gradient = sigmoid_backward(tangent, y)
"""

import torch
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.escape_analysis import keeps_to_its_schema

_IDENTITIES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)


def remove_identity_views(gm: GraphModule) -> GraphModule:
    """Lets the readers of detached tensors and of aliases read the tensors themselves.

    Requires: a functional graph, in which no operator changes the sizes of a tensor. A joint graph
    must be split before: the partitioner may compute again what is not detached.
    Ensures: the same values. What is returned stays, and other views of it: the caller could tell
    one tensor from two, and a view of a detached tensor from a view of the tensor.

    Args:
        gm: an ATen graph; it is changed and returned.
    """
    for node in list(gm.graph.nodes):
        if node.target in _IDENTITIES:
            node.replace_all_uses_with(node.args[0], _reads_or_is_identity)
            if not node.users:
                gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _reads_or_is_identity(user: Node) -> bool:
    op = user.target
    if op in _IDENTITIES or not isinstance(op, OpOverload):
        return op in _IDENTITIES
    return keeps_to_its_schema(op) and not is_view(op)
