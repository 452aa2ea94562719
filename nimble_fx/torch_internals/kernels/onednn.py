"""oneDNN's convolutions and matrix products on a CPU, with weights in oneDNN's own layouts.

They read a bias as if it were contiguous, and can add a tensor and apply an activation.
`LINEAR` takes (x, weight, bias, activation, its numbers, its variant) and returns
x @ weight.t() + bias; `CONVOLUTION` takes (x, weight, bias, padding, stride, dilation, groups,
activation, its numbers, its variant); `CONVOLUTION_ADD` takes (x, other, weight, bias, padding,
stride, dilation, groups, "add", factor of other, activation, its numbers, its variant).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import Missing, has_kernel_for_dispatch_key, lookup

CONVOLUTION = lookup("torch.ops.mkldnn._convolution_pointwise.default")
CONVOLUTION_ADD = lookup("torch.ops.mkldnn._convolution_pointwise.binary")

LINEAR = lookup("torch.ops.mkldnn._linear_pointwise.default")

FILTER_POSITION = {CONVOLUTION: 1, CONVOLUTION_ADD: 2}
"""The position of a convolution's weight; bias, padding, stride, dilation, groups follow."""

WEIGHT_POSITION = {**FILTER_POSITION, LINEAR: 1}
"""The position of the weight among the arguments."""

_reorder_filter = lookup("torch.ops.aten.mkldnn_reorder_conv2d_weight.default")
_reorder_matrix = lookup("torch.ops.mkldnn._reorder_linear_weight.default")


def is_available() -> bool:
    """Whether this PyTorch has oneDNN, and the user has not turned it off."""
    backend: Any = torch.backends.mkldnn
    return _are_here and bool(backend.enabled)


def packed_filter(
    weight: Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int],
) -> Tensor:
    """A convolution's weight in the layout that oneDNN prefers, which only its operators read.

    Args:
        weight: the weight of a convolution in two dimensions.
        padding, stride, dilation, groups: the convolution's parameters.
        input_size: the expected size of the images; other sizes also give correct results.
    """
    layout = [list(padding), list(stride), list(dilation), groups, list(input_size)]
    result: Tensor = _reorder_filter(weight.to_mkldnn(), *layout)
    return result


def packed_matrix(weight: Tensor, n_rows: int) -> Tensor:
    """The weight of `LINEAR` in the layout that oneDNN prefers, which only its operators read.

    Args:
        weight: a row for each column of the result.
        n_rows: the expected rows of the other factor; other numbers also give correct results.
    """
    result: Tensor = _reorder_matrix(weight, n_rows)
    return result


def _convolution_add(
    x: Tensor,
    other: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_: Any,
) -> Tensor:
    """The Meta kernel of `CONVOLUTION_ADD`, which PyTorch lacks."""
    window = (padding, stride, dilation, groups)
    result: Tensor = CONVOLUTION(x, weight, bias, *window, "none", [], None)
    if result.shape != other.shape:
        raise ValueError(f"adds a tensor of {list(other.shape)} to one of {list(result.shape)}")
    return result


_USED = (CONVOLUTION, CONVOLUTION_ADD, LINEAR, _reorder_filter, _reorder_matrix)
_is_built: Any = torch.backends.mkldnn.is_available
_are_here = _is_built() and not any(isinstance(operator, Missing) for operator in _USED)
if _are_here and not has_kernel_for_dispatch_key(CONVOLUTION_ADD.name(), "Meta"):
    _meta_kernels: Any = torch.library.Library("mkldnn", "IMPL", "Meta")  # type: ignore[no-untyped-call]
    _meta_kernels.impl(CONVOLUTION_ADD, _convolution_add)
