"""Computes small pointwise convolutions on a CPU as products of matrices.

Before: y = convolution(x, weight, bias), of a weight of one position, x in the channels-last format
After: y = permute(linear(permute(x), clone(squeeze(weight)), bias))

Calling oneDNN's convolution takes about 20 microseconds before it computes anything, a product 5.
In the channels-last format the pixels are the rows of a matrix, so nothing is copied.
"""

from collections.abc import Collection

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.folding.convolution import Convolution, convolutions_in_calls
from nimble_fx.rewrites.folding.fuse_activations import applies_activation
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.symbolic import are_known

_aten = torch.ops.aten

MAX_ELEMENTS = 2**17
"""The most elements of the result. A product first copies the bias to each row of it."""

MAX_FLOPS = 2**24
"""The most floating-point operations. Packed weights speed up a larger one by more than oneDNN's
call costs.
"""

MIN_CHANNELS = 16
"""The fewest channels. A product with a narrower matrix can take three times as long."""


def pointwise_products(
    gm: GraphModule, fixed: Collection[Node], assume_finite: bool = False
) -> GraphModule:
    """Replaces small 1x1 convolutions with products.

    Requires: a float32 convolution in two dimensions, not transposed, on a CPU, without groups,
    strides and padding, whose weight is among `fixed`, and which is not itself; its image and
    result have known sizes and are in the channels-last format; there is no activation after it
    that oneDNN's convolution could apply.
    Ensures: the same values up to rounding, of the same shapes and strides.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        fixed: nodes that are computed outside of the calls.
        assume_finite: as for `fuse_activations`.
    """
    for node in convolutions_in_calls(gm.graph, fixed):
        if _gains(node) and not applies_activation(node, assume_finite):
            _replace(gm, node)
    gm.recompile()
    return gm


def _gains(node: Node) -> bool:
    """Whether it is small, and equals a matrix product."""
    of = Convolution.of(node)
    images: list[Tensor] = [of.x.meta["val"], node.meta["val"]]
    filters: Tensor = of.weight.meta["val"]
    if of.is_transposed or of.n_groups != 1 or not all(map(_is_image_of_known_size, images)):
        return False
    is_pointwise = filters.shape[2:] == (1, 1) and (of.stride, of.padding) == ([1, 1], [0, 0])
    n_elements, n_channels = images[1].numel(), min(filters.shape[:2])
    is_small = n_elements <= MAX_ELEMENTS and 2 * n_elements * filters.shape[1] <= MAX_FLOPS
    return is_pointwise and is_small and n_channels >= MIN_CHANNELS


def _is_image_of_known_size(value: Tensor) -> bool:
    is_plain = value.dtype == torch.float32 and value.device.type == "cpu" and value.dim() == 4
    is_known = is_plain and are_known(value.shape)
    return is_known and value.is_contiguous(memory_format=torch.channels_last)


def _replace(gm: GraphModule, node: Node) -> None:
    x, weight, bias, *_ = Convolution.of(node)
    with gm.graph.inserting_before(node):
        matrix = _matrix(gm, weight)
        rows = call(gm.graph, node, _aten.permute.default, x, [0, 2, 3, 1])
        product = call(gm.graph, node, _aten.linear.default, rows, matrix, bias)
        result = call(gm.graph, node, _aten.permute.default, product, [0, 3, 1, 2])
    node.replace_all_uses_with(result)
    gm.graph.erase_node(node)
    if not weight.users:
        gm.graph.erase_node(weight)


def _matrix(gm: GraphModule, weight: Node) -> Node:
    """The weight as a matrix in its own memory; a view of it would not count as folded."""
    is_clone = weight.target is _aten.clone.default
    source = weight.all_input_nodes[0] if is_clone else weight
    viewed = call(gm.graph, weight, _aten.squeeze.dims, source, [2, 3])
    contiguous = torch.contiguous_format
    return call(gm.graph, weight, _aten.clone.default, viewed, memory_format=contiguous)
