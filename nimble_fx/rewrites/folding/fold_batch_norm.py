"""Folds batch normalization into the convolution before it.

Before: y = convolution(x, weight, bias); z = batch_norm(y) with running statistics.
After: z = convolution(x, weight * scale, (bias - mean) * scale + shift), with
scale = gamma / sqrt(variance + eps) for each channel. What has `scale` in it depends on parameters
and buffers alone, so that `hoist_weights` takes it out of the calls.

Source: Jacob et al.: "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, section 3.2.
"""

import operator
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten
_BATCH_NORM = _aten._native_batch_norm_legit_no_training.default


def fold_batch_norm(gm: GraphModule, weights: Collection[Node]) -> GraphModule:
    """Replaces each convolution and the batch normalization of its result by a convolution.

    Requires: nothing else reads the convolution's result; its weight and bias and the arguments of
    the normalization are among `weights`, all of the type of the result, but not float16, in which
    `eps` may be 0. It has several channels: the normalization may return another format than an
    image of one channel has.
    Ensures: the same values up to rounding, and the same shapes and strides.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        weights: inputs that stay the same from call to call.
    """
    for norm in gm.graph.find_nodes(op="call_function", target=_BATCH_NORM):
        found = _Pair.of(norm, weights)
        if found is not None:
            found.replace(gm)
    gm.recompile()
    return gm


@dataclass(frozen=True)
class _Pair:
    """A convolution and the batch normalization of its result."""

    convolution: Node
    norm: Node

    @staticmethod
    def of(norm: Node, weights: Collection[Node]) -> "_Pair | None":
        """The pair that a normalization is part of; None if it cannot be folded."""
        convolution = norm.args[0]
        if not isinstance(convolution, Node):
            return None
        if convolution.target is not _aten.convolution.default or convolution.args[6]:
            return None  # transposed: the channels are in another dimension of the weight
        if list(convolution.users) != [norm] or not all(map(_is_first_result, norm.users)):
            return None
        used = [*convolution.all_input_nodes[1:], *norm.all_input_nodes[1:]]
        dtypes = {node.meta["val"].dtype for node in [*used, convolution]}
        is_folded = len(dtypes) == 1 and all(node in weights for node in used)
        result = convolution.meta["val"]
        is_folded = is_folded and result.shape[1] > 1 and result.dtype != torch.float16
        return _Pair(convolution, norm) if is_folded else None

    def replace(self, gm: GraphModule) -> None:
        """Makes the convolution do both."""
        graph, (x, weight, bias, *rest) = gm.graph, self.convolution.args
        n_others = self.convolution.meta["val"].dim() - 1
        _, gamma, beta, mean, variance, _, eps = self.norm.args
        with graph.inserting_before(self.convolution):
            scale = self._call(gm, _aten.add.Scalar, variance, eps)
            scale = self._call(gm, _aten.rsqrt.default, scale)
            if gamma is not None:
                scale = self._call(gm, _aten.mul.Tensor, scale, gamma)
            shift = self._call(gm, _aten.neg.default, mean)
            if bias is not None:
                shift = self._call(gm, _aten.add.Tensor, shift, bias)
            shift = self._call(gm, _aten.mul.Tensor, shift, scale)
            if beta is not None:
                shift = self._call(gm, _aten.add.Tensor, shift, beta)
            column = self._call(gm, _aten.view.default, scale, [-1] + [1] * n_others)
            folded = self._call(gm, _aten.mul.Tensor, weight, column)
        self.convolution.args = (x, folded, shift, *rest)
        for item in list(self.norm.users):
            item.replace_all_uses_with(self.convolution)
            graph.erase_node(item)
        graph.erase_node(self.norm)

    def _call(self, gm: GraphModule, target: OpOverload, *args: object) -> Node:
        return call(gm.graph, self.convolution, target, *args)


def _is_first_result(user: Node) -> bool:
    return not user.users or (user.target is operator.getitem and user.args[1:] == (0,))
