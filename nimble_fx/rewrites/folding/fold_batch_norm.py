"""Folds batch normalization into the convolution before it.

Before: y = convolution(x, weight, bias); z = batch_norm(y) with running statistics.
After: z = convolution(x, weight * scale, (bias - mean) * scale + shift), with
scale = gamma / sqrt(variance + eps) for each channel. The new weight and bias depend only on
parameters and buffers, so `hoist_weights` moves their computation out of the calls. For half types
they are computed in float32, like the normalization itself, and rounded once.

Source: Jacob et al.: "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, section 3.2.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.folding.convolution import Convolution
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.rewrites.results_read import is_only_first_read
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.source_lines import fuse_lines

_aten = torch.ops.aten
_BATCH_NORM = _aten._native_batch_norm_legit_no_training.default
_HALVES = {torch.float16, torch.bfloat16}

MIN_EPS_OF_FLOAT16 = 1e-5
"""PyTorch's default, with which a folded weight is at most 316 times gamma times the weight. With a
smaller `eps` and a variance near 0 it may leave the range of float16."""


def fold_batch_norm(gm: GraphModule, weights: Collection[Node]) -> GraphModule:
    """Replaces each convolution and the batch normalization of its result with one convolution.

    Requires: only the normalization reads the convolution's result; the convolution's weight and
    bias and the arguments of the normalization are among `weights`, and have the convolution's
    type, or float32 if that is a half type. In float16 `eps` is at least `MIN_EPS_OF_FLOAT16`. The
    result has several channels, because the normalization of an image of one channel may return a
    different memory format.
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
        if convolution.target is not _aten.convolution.default:
            return None
        of = Convolution.of(convolution)
        if of.is_transposed or list(convolution.users) != [norm] or not is_only_first_read(norm):
            return None
        used = [each for each in (of.weight, of.bias, *norm.args[1:5]) if each is not None]
        result, eps = convolution.meta["val"], norm.args[6]
        is_in_range = result.dtype != torch.float16 or eps >= MIN_EPS_OF_FLOAT16  # type: ignore[operator]
        dtypes = {result.dtype, torch.float32} if result.dtype in _HALVES else {result.dtype}
        are_weights = all(
            isinstance(each, Node) and each in weights and each.meta["val"].dtype in dtypes
            for each in used
        )
        is_folded = is_in_range and result.shape[1] > 1 and are_weights
        return _Pair(convolution, norm) if is_folded else None

    def replace(self, gm: GraphModule) -> None:
        """Replaces both with one convolution."""
        graph, of = gm.graph, Convolution.of(self.convolution)
        n_others = self.convolution.meta["val"].dim() - 1
        with graph.inserting_before(self.convolution):
            gamma, beta, mean, variance = map(partial(self._computed, gm), self.norm.args[1:5])
            scale = self._call(gm, _aten.add.Scalar, variance, self.norm.args[6])
            scale = self._call(gm, _aten.rsqrt.default, scale)
            if gamma is not None:
                scale = self._call(gm, _aten.mul.Tensor, scale, gamma)
            shift = self._call(gm, _aten.neg.default, mean)
            if of.bias is not None:
                shift = self._call(gm, _aten.add.Tensor, shift, self._computed(gm, of.bias))
            shift = self._call(gm, _aten.mul.Tensor, shift, scale)
            if beta is not None:
                shift = self._call(gm, _aten.add.Tensor, shift, beta)
            column = self._call(gm, _aten.view.default, scale, [-1] + [1] * n_others)
            folded = self._call(gm, _aten.mul.Tensor, self._computed(gm, of.weight), column)
            folded, shift = self._rounded(gm, folded), self._rounded(gm, shift)
        self.convolution.args = tuple(of._replace(weight=folded, bias=shift))
        fuse_lines(self.convolution, (self.convolution, self.norm))
        for item in list(self.norm.users):
            item.replace_all_uses_with(self.convolution)
            graph.erase_node(item)
        graph.erase_node(self.norm)

    def _computed(self, gm: GraphModule, weight: Any) -> Any:
        """A weight in the type to compute in; None for None."""
        if weight is None or weight.meta["val"].dtype not in _HALVES:
            return weight
        return self._call(gm, _aten._to_copy.default, weight, dtype=torch.float32)

    def _rounded(self, gm: GraphModule, result: Node) -> Node:
        """A computed weight, rounded to the convolution's type."""
        dtype = self.convolution.meta["val"].dtype
        if dtype not in _HALVES:
            return result
        return self._call(gm, _aten._to_copy.default, result, dtype=dtype)

    def _call(self, gm: GraphModule, target: OpOverload, *args: object, **kwargs: object) -> Node:
        return call(gm.graph, self.convolution, target, *args, **kwargs)
