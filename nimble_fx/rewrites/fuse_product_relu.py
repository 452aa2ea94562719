"""Lets cuBLAS apply relu to a matrix product in the product's kernel, on a GPU.

Before: y = addmm(bias, x, matrix); z = relu(y).
After: z = _addmm_activation(bias, x, matrix). Only with `options.assume_finite`, because PyTorch's
relu keeps NaN, and cuBLAS does not document that its relu does.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.epilogues import fusible_user
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.operators import RESHAPES
from nimble_fx.torch_internals.symbolic import are_same_sizes, known_number
from nimble_fx.tracing.source_lines import fuse_lines

_aten = torch.ops.aten
_DTYPES = {torch.float16, torch.bfloat16, torch.float32}
_DEVICES = {"cuda", "meta"}
"""The device types of tensors on a GPU, and in a plan for one."""


def fuse_product_relu(gm: GraphModule) -> GraphModule:
    """The graph with one operator for a product and its relu; the graph itself if it has none.

    Requires: a product whose bias is one row, without scaling factors, on a GPU or in a plan for
    one, of a type in `_DTYPES`. Only the relu reads its result, directly or through a view (as in a
    linear layer on sequences). The summed dimension is not empty: PyTorch's `_addmm_activation`
    would return the bias without relu.
    Ensures: the same finite values, with the same shapes and strides.

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
            fuse_lines(product, (product, relu))
            relu.replace_all_uses_with(relu.all_input_nodes[0])
            fused.graph.erase_node(relu)
    fused.recompile()
    return fused


def _products(gm: GraphModule) -> Iterable[Node]:
    return gm.graph.find_nodes(op="call_function", target=_aten.addmm.default)


def _relu_of(product: Node) -> Node | None:
    """The relu that a product's kernel can apply."""
    value, relu = product.meta["val"], fusible_user(_viewed(product))
    is_on_gpu = value.device.type in _DEVICES and value.dtype in _DTYPES
    bias, x, _ = (node.meta["val"] for node in cast(tuple[Node, ...], product.args))
    has_row = are_same_sizes(bias.shape, value.shape[1:]) and known_number(x.shape[1]) != 0
    is_relu = relu is not None and relu.target is _aten.relu.default
    return relu if is_on_gpu and has_row and is_relu and not product.kwargs else None


def _viewed(product: Node) -> Node:
    """The view that is a product's only reader; the product itself if there is none."""
    user = next(iter(product.users), product)
    return user if len(product.users) == 1 and user.target in RESHAPES else product
