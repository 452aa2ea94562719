"""Lets cuBLAS apply relu to a matrix product on a GPU, where it can in the product's kernel.

Before: y = addmm(bias, x, matrix); z = relu(y).
After: z = _addmm_activation(bias, x, matrix). cuBLAS does not say that its relu leaves NaN, as
PyTorch's does: so `options.assume_finite` asks for it.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.epilogues import only_user
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.symbolic import are_same_sizes, known_number

_aten = torch.ops.aten
_DTYPES = {torch.float16, torch.bfloat16, torch.float32}
_DEVICES = {"cuda", "meta"}
"""Of tensors on a GPU, and of those of a plan for one."""


def fuse_product_relu(gm: GraphModule) -> GraphModule:
    """The graph with one operator for a product and the relu of it; itself if it has none.

    Requires: a product with a row as bias and without factors, on a GPU or in a plan for one, of a
    type of `_DTYPES`, whose result only the relu reads, itself or as a view, as of a layer of
    sequences. It has something to sum: of a product of no columns PyTorch returns the bias alone.
    Ensures: the same values where they are finite, of the same shapes and strides.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
    """
    if not any(map(_relu_of, _products(gm))):
        return gm
    fused = copied(gm)
    for product in _products(fused):
        relu = _relu_of(product)
        if relu is not None:
            product.target = _aten._addmm_activation.default
            relu.replace_all_uses_with(relu.all_input_nodes[0])
            fused.graph.erase_node(relu)
    fused.recompile()
    return fused


def _products(gm: GraphModule) -> Iterable[Node]:
    return gm.graph.find_nodes(op="call_function", target=_aten.addmm.default)


def _relu_of(product: Node) -> Node | None:
    """The relu that a product can apply itself."""
    value, relu = product.meta["val"], only_user(_viewed(product))
    is_on_gpu = value.device.type in _DEVICES and value.dtype in _DTYPES
    bias, x, _ = (node.meta["val"] for node in cast(tuple[Node, ...], product.args))
    has_row = are_same_sizes(bias.shape, value.shape[1:]) and known_number(x.shape[1]) != 0
    is_relu = relu is not None and relu.target is _aten.relu.default
    return relu if is_on_gpu and has_row and is_relu and not product.kwargs else None


def _viewed(product: Node) -> Node:
    """The view that alone reads a product; itself if there is none."""
    user = next(iter(product.users), product)
    return user if len(product.users) == 1 and user.target is _aten.view.default else product
