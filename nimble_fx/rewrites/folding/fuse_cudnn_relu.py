"""Fuses convolutions on a GPU with their bias, an addition and the relu after them (cuDNN).

Before: y = convolution(x, weight, bias); z = relu(y), or z = relu(y + other).
After: z = `cudnn_convolution_relu`, or z = `cudnn_convolution_add_relu`: one kernel. PyTorch's
convolution launches a second kernel just for its bias. `hardtanh(y, 0, most)`, such as relu6,
becomes the fused relu and `clamp_max(z, most)`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import copysign
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.epilogues import added_to, fusible_user
from nimble_fx.rewrites.folding.convolution import Convolution, convolutions_in_calls
from nimble_fx.rewrites.new_nodes import call, without_gaps
from nimble_fx.torch_internals.kernels.cudnn import (
    CONVOLUTION_ADD_RELU,
    CONVOLUTION_RELU,
    DTYPES,
    is_deterministic,
)
from nimble_fx.torch_internals.memory_formats import is_channels_last
from nimble_fx.torch_internals.symbolic import are_known
from nimble_fx.tracing.source_lines import fuse_lines

_aten = torch.ops.aten

MAX_ELEMENTS = 2**31 - 1
"""The most elements of the images. PyTorch splits larger batches, or does not use cuDNN."""


def fuse_cudnn_relu(gm: GraphModule, fixed: Collection[Node]) -> GraphModule:
    """Replaces convolutions, with the addition and the relu after them, by cuDNN's fused operators.

    Requires: a convolution in two dimensions, not transposed, with a bias, of known sizes and a
    type in `DTYPES`. Its groups have several channels (cuDNN's fused kernels for depthwise
    convolutions take several times as long). Its weight is among `fixed`, and it is not itself. Its
    result is in the channels-last format, for which cuDNN has the fastest kernels. Only the next
    fused operator reads each intermediate result. The other operand of an addition has the same
    shape and type, and no tensor is written in place between the convolution and the addition.
    Ensures: the same values up to rounding, of the same shapes and strides.

    Args:
        gm: an ATen graph for a GPU, with fake tensors in `meta["val"]`; it is changed and returned.
        fixed: nodes that are computed outside of the calls.
    """
    if not is_deterministic():
        for node in convolutions_in_calls(gm.graph, fixed):
            fusion = _Fusion.of(node) if _is_fusible(node) else None
            if fusion is not None:
                fusion.replace(gm)
        gm.recompile()
    return gm


def _is_fusible(node: Node) -> bool:
    of = Convolution.of(node)
    images: list[Tensor] = [of.x.meta["val"], node.meta["val"]]
    is_of_single_channels = of.weight.meta["val"].shape[1] == 1
    is_plain = not (of.is_transposed or is_of_single_channels or of.bias is None)
    return is_plain and all(map(_is_supported, images)) and is_channels_last(images[1])


def _is_supported(image: Tensor) -> bool:
    return are_known(image.shape) and image.numel() <= MAX_ELEMENTS and image.dtype in DTYPES


@dataclass(frozen=True)
class _Fusion:
    """A convolution, the addition after it, if any, and the relu."""

    convolution: Node
    addition: Node | None
    activation: Node

    @staticmethod
    def of(convolution: Node) -> "_Fusion | None":
        """A convolution with the operators that can be fused with it; None without a relu."""
        user = fusible_user(convolution)
        is_added = user is not None and added_to(convolution, user) is not None
        addition = user if is_added else None
        activation = user if addition is None else fusible_user(addition)
        if activation is None or not _begins_with_relu(activation):
            return None
        return _Fusion(convolution, addition, activation)

    def replace(self, gm: GraphModule) -> None:
        """Adds the fused operator, and removes the operators that it replaces."""
        with gm.graph.inserting_before(self.activation):
            fused = self._fused(gm)
        fuse_lines(fused, filter(None, (self.convolution, self.addition, self.activation)))
        if self.activation.target is _aten.relu.default:
            self.activation.replace_all_uses_with(fused)
            gm.graph.erase_node(self.activation)
        else:
            self.activation.target = _aten.clamp_max.default
            self.activation.args = (fused, self.activation.args[2])
        for node in filter(None, (self.addition, self.convolution)):
            gm.graph.erase_node(node)

    def _fused(self, gm: GraphModule) -> Node:
        of = Convolution.of(self.convolution)
        bias = without_gaps(gm.graph, cast(Node, of.bias), self.convolution)
        window = map(_of_both_dimensions, (of.stride, of.padding, of.dilation))
        rest = (bias, *window, of.n_groups)
        if self.addition is None:
            return call(gm.graph, self.activation, CONVOLUTION_RELU, of.x, of.weight, *rest)
        other = added_to(self.convolution, self.addition)
        operands = (of.x, of.weight, other, 1.0)
        return call(gm.graph, self.activation, CONVOLUTION_ADD_RELU, *operands, *rest)


def _of_both_dimensions(numbers: Any) -> list[int]:
    """A window parameter as two numbers; only `convolution` takes one number for both."""
    return list(numbers) * (2 // len(numbers))


def _begins_with_relu(activation: Node) -> bool:
    """Whether it is relu, or relu with an upper bound; both keep NaN."""
    if activation.target is _aten.relu.default:
        return True
    arguments: tuple[Any, ...] = activation.args
    is_bounded = activation.target is _aten.hardtanh.default and len(arguments) == 3
    return is_bounded and arguments[1] == 0 and copysign(1, arguments[1]) > 0
