"""Lets convolutions work in the channels-last memory format.

Before: convolution(x, weight), with weights and images in the default format, which the library
converts in each call and back.
After: convolution(x, clone(weight, channels_last)). Its result is in that format, and so are the
results of the following operators that take any format. A value is copied back to the default
format for operators that need it, and where the graph returns it.
"""

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.folding.convolution import Convolution
from nimble_fx.rewrites.new_nodes import call, fake_result
from nimble_fx.torch_internals.kernels.cudnn import DTYPES, in_its_format
from nimble_fx.torch_internals.leaves import tensors_of
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten
_TAKE_ANY_FORMAT = {
    _aten._adaptive_avg_pool2d.default,
    _aten._native_batch_norm_legit_no_training.default,
    _aten.avg_pool2d.default,
    _aten.cat.default,
    _aten.constant_pad_nd.default,
    _aten.convolution.default,
    _aten.hardswish.default,
    _aten.leaky_relu.default,
    _aten.max_pool2d_with_indices.default,
    _aten.mean.dim,
    _aten.sum.dim_IntList,
    _aten._upsample_nearest_exact2d.default,
    _aten.upsample_bicubic2d.default,
    _aten.upsample_bilinear2d.default,
    _aten.upsample_nearest2d.default,
    operator.getitem,
}
"""Operators that return the same values for any strides, in addition to elementwise ones."""


def channels_last(gm: GraphModule, fixed: Collection[Node]) -> GraphModule:
    """The graph with convolutions in the channels-last format; the graph itself if there is none.

    Requires: a floating-point convolution in two dimensions, not transposed, whose weight is among
    `fixed`; on a GPU not of float64, which cuDNN does not take in this format. All images among
    the other inputs are in the default format (otherwise the model probably uses channels last
    already).
    Ensures: the same values up to rounding; outputs of the same shapes and strides. Operators that
    are neither elementwise nor in `_TAKE_ANY_FORMAT` get arguments with their original strides, and
    so do those that take images of one channel.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        fixed: nodes that are computed outside of the calls.
    """
    if not any(_is_convertible(node, fixed) for node in gm.graph.nodes):
        return gm
    images = set(gm.graph.find_nodes(op="placeholder")).difference(fixed)
    if not all(map(_is_in_default_format, images)):
        return gm
    try:
        return _Conversion(gm, fixed).run()
    except _CannotRestoreError:
        return gm


def _is_convertible(node: Node, fixed: Collection[Node]) -> bool:
    if node.target is not _aten.convolution.default:
        return False
    arguments = Convolution.of(node)
    if arguments.is_transposed or arguments.weight not in fixed:
        return False
    value: Tensor = arguments.weight.meta["val"]
    is_image = value.dim() == 4 and value.is_floating_point()
    is_taken = value.device.type == "cpu" or value.dtype in DTYPES
    return bool(is_image and is_taken and value.is_contiguous())


def _is_in_default_format(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.dim() != 4 or value.is_contiguous()


class _CannotRestoreError(Exception):
    """A value is needed with its original strides, which are not the default format's."""


class _Conversion:
    """A copy of a graph, in which values may have different strides."""

    def __init__(self, gm: GraphModule, fixed: Collection[Node]) -> None:
        self._gm, self._fixed, self._graph = gm, fixed, Graph()
        self._copies: dict[Node, Node] = {}
        self._restored: dict[Node, Node] = {}

    def run(self) -> GraphModule:
        for node in self._gm.graph.nodes:
            self._copies[node] = self._copied(node)
        return GraphModule(self._gm, self._graph)

    def _copied(self, node: Node) -> Node:
        changed = [arg for arg in node.all_input_nodes if self._has_changed(arg)]
        if not changed:
            copy = self._graph.node_copy(node, self._copies.__getitem__)
        elif _takes_any_format(node) and not any(map(_has_one_channel, changed)):
            copy = self._graph.node_copy(node, self._copies.__getitem__)
            copy.meta = node.meta | {"val": _result(copy)}
        else:
            restored = {arg: self._as_it_was(arg) for arg in node.all_input_nodes}
            copy = self._graph.node_copy(node, restored.__getitem__)
        if _is_convertible(node, self._fixed):
            self._convert(copy)
        return copy

    def _convert(self, convolution: Node) -> None:
        weight = Convolution.of(convolution).weight
        with self._graph.inserting_before(convolution):
            converted = call(
                self._graph, weight, _aten.clone.default, weight, memory_format=torch.channels_last
            )
        convolution.update_arg(1, converted)
        convolution.meta = convolution.meta | {"val": _result(convolution)}

    def _has_changed(self, node: Node) -> bool:
        """Whether a value's strides differ from those in the original graph."""
        return _strides(node) != _strides(self._copies[node])

    def _as_it_was(self, node: Node) -> Node:
        """A value with its original strides."""
        if not self._has_changed(node):
            return self._copies[node]
        value = node.meta["val"]
        if not isinstance(value, Tensor) or not value.is_contiguous():
            raise _CannotRestoreError
        if node not in self._restored:
            self._restored[node] = call(
                self._graph,
                self._copies[node],
                _aten.clone.default,
                self._copies[node],
                memory_format=torch.contiguous_format,
            )
        return self._restored[node]


def _result(node: Node) -> Any:
    """The result of an operator with an argument in the channels-last format.

    For the tensors of a plan, PyTorch does not know that a convolution's kernel is cuDNN's.
    """
    result = fake_result(node)
    if node.target is not _aten.convolution.default or result.device.type != "meta":
        return result
    arguments = Convolution.of(node)
    return in_its_format(result, arguments.x.meta["val"], arguments.weight.meta["val"])


def _strides(node: Node) -> list[object]:
    return [tensor.stride() for tensor in tensors_of(node)]


def _has_one_channel(node: Node) -> bool:
    """Whether it is an image in both formats, of which kernels return others than promised."""
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.dim() == 4 and value.shape[1] == 1


def _takes_any_format(node: Node) -> bool:
    if node.target in _TAKE_ANY_FORMAT:
        return True
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
