"""Lets cuDNN's convolutions on a GPU add their bias, maybe a tensor, and apply relu themselves.

Before: y = convolution(x, weight, bias); z = relu(y), or z = relu(y + other).
After: z = `cudnn_convolution_relu`, or z = `cudnn_convolution_add_relu`: one kernel, where
PyTorch's convolution alone launches a second one for its bias. Of `hardtanh(y, 0, most)`, such as
relu6, `clamp_max(z, most)` is left.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import copysign
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.epilogues import added_to, only_user
from nimble_fx.rewrites.new_nodes import call, without_gaps
from nimble_fx.torch_internals.kernels.cudnn import (
    CONVOLUTION_ADD_RELU,
    CONVOLUTION_RELU,
    DTYPES,
    is_deterministic,
)
from nimble_fx.torch_internals.memory_formats import is_channels_last

_aten = torch.ops.aten

MAX_ELEMENTS = 2**31 - 1
"""Of an image. PyTorch splits a larger one, or takes other kernels than cuDNN's."""


def fuse_cudnn_relu(gm: GraphModule, fixed: Collection[Node]) -> GraphModule:
    """Replaces convolutions, with the addition and the relu after them, by cuDNN's.

    Requires: a convolution in two dimensions, not transposed, of groups of several channels (fused
    kernels of depthwise ones take several times as long), with a bias, of a type of `DTYPES`, which
    is not among `fixed`, as its weight is, whose sizes are known, and whose result is in the
    channels-last format, in which cuDNN has the fastest kernels; nothing else reads what is
    replaced. An addition's other operand has the same shape and type, and nothing is written in
    place between the two.
    Ensures: the same values up to rounding, of the same shapes and strides.

    Args:
        gm: an ATen graph for a GPU, with fake tensors in `meta["val"]`; it is changed and returned.
        fixed: nodes that are computed outside of the calls.
    """
    if not is_deterministic():
        for node in gm.graph.find_nodes(op="call_function", target=_aten.convolution.default):
            fusion = _Fusion.of(node) if _is_convertible(node, fixed) else None
            if fusion is not None:
                fusion.replace(gm)
        gm.recompile()
    return gm


def _is_convertible(node: Node, fixed: Collection[Node]) -> bool:
    arguments: tuple[Any, ...] = node.args
    x, weight, bias, _, _, _, is_transposed, *_ = arguments
    images: list[Tensor] = [x.meta["val"], node.meta["val"]]
    is_of_single_channels = weight.meta["val"].shape[1] == 1
    is_plain = not (is_transposed or is_of_single_channels or bias is None)
    is_in_calls = weight in fixed and node not in fixed
    are_supported = all(map(_is_supported, images))
    return is_plain and is_in_calls and are_supported and is_channels_last(images[1])


def _is_supported(image: Tensor) -> bool:
    is_known = all(type(n) is int for n in image.shape)
    return is_known and image.numel() <= MAX_ELEMENTS and image.dtype in DTYPES


@dataclass(frozen=True)
class _Fusion:
    """A convolution, the addition of its result if there is one, and an activation."""

    convolution: Node
    addition: Node | None
    activation: Node

    @staticmethod
    def of(convolution: Node) -> "_Fusion | None":
        """A convolution with what can be fused with it; None without a relu."""
        user = only_user(convolution)
        is_added = user is not None and added_to(convolution, user) is not None
        addition = user if is_added else None
        activation = user if addition is None else only_user(addition)
        if activation is None or not _begins_with_relu(activation):
            return None
        return _Fusion(convolution, addition, activation)

    def replace(self, gm: GraphModule) -> None:
        """Adds the operator that does it all, and removes what it does."""
        with gm.graph.inserting_before(self.activation):
            fused = self._fused(gm)
        if self.activation.target is _aten.relu.default:
            self.activation.replace_all_uses_with(fused)
            gm.graph.erase_node(self.activation)
        else:
            self.activation.target = _aten.clamp_max.default
            self.activation.args = (fused, self.activation.args[2])
        for node in filter(None, (self.addition, self.convolution)):
            gm.graph.erase_node(node)

    def _fused(self, gm: GraphModule) -> Node:
        x, weight, bias, stride, padding, dilation, _, _, groups = self.convolution.args
        bias = without_gaps(gm.graph, cast(Node, bias), self.convolution)
        window = (bias, *map(_of_both_dimensions, (stride, padding, dilation)), groups)
        if self.addition is None:
            return call(gm.graph, self.activation, CONVOLUTION_RELU, x, weight, *window)
        other = added_to(self.convolution, self.addition)
        operands = (x, weight, other, 1.0)
        return call(gm.graph, self.activation, CONVOLUTION_ADD_RELU, *operands, *window)


def _of_both_dimensions(numbers: Any) -> list[int]:
    """Two numbers of a window; `convolution` takes one for both, and cuDNN's operators do not."""
    return list(numbers) * (2 // len(numbers))


def _begins_with_relu(activation: Node) -> bool:
    """Whether it is relu, or relu and then a bound: both leave NaN."""
    if activation.target is _aten.relu.default:
        return True
    arguments: tuple[Any, ...] = activation.args
    is_bounded = activation.target is _aten.hardtanh.default and len(arguments) == 3
    return is_bounded and arguments[1] == 0 and copysign(1, arguments[1]) > 0
