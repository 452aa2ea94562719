"""Removes views that differ in nothing from the tensor that they view.

A derivative that uses its operator's result, as that of `relu` does, reads it through two such
views: PyTorch's autograd detaches what it saves, when it saves it and when it reads it.

Before: y = relu(x); a = detach(y); b = detach(a); gradient = threshold_backward(tangent, b, 0)
After:  y = relu(x); gradient = threshold_backward(tangent, y, 0)
"""

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.torch_internals.symbolic import are_same_sizes, is_same_size


def remove_identity_views(gm: GraphModule) -> GraphModule:
    """Lets the readers of views that are equal to their tensors read these tensors.

    Requires: a graph in which no operator changes sizes, strides or storage of a tensor in place; a
    view with its tensor's type, sizes, strides and offset, for all values of symbolic sizes.
    Ensures: the same values. What is returned stays: the caller could tell one tensor from two.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.

    Cost: O(nodes + edges).
    """
    for node in list(gm.graph.nodes):
        if _is_identity(node):
            base = node.args[0]
            node.replace_all_uses_with(base, delete_user_cb=lambda user: user.op != "output")
            if not node.users:
                gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _is_identity(node: Node) -> bool:
    """Whether a node is a view that is equal to its first argument."""
    if not isinstance(node.target, OpOverload) or not is_view(node.target):
        return False
    base = next(iter(node.args), None)
    view, viewed = node.meta.get("val"), base.meta.get("val") if isinstance(base, Node) else None
    if not isinstance(view, Tensor) or not isinstance(viewed, Tensor):
        return False
    return view.layout is viewed.layout is torch.strided and _are_equal(view, viewed)


def _are_equal(view: Tensor, base: Tensor) -> bool:
    """Whether two tensors are the same elements of the same storage in the same order."""
    return (
        storage_key(view) == storage_key(base)
        and (view.dtype, view.is_conj(), view.is_neg())
        == (base.dtype, base.is_conj(), base.is_neg())
        and are_same_sizes(view.shape, base.shape)
        and are_same_sizes(view.stride(), base.stride())
        and is_same_size(view.storage_offset(), base.storage_offset())
    )
