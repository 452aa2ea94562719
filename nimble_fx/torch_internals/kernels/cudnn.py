"""cuDNN's fused convolutions on a GPU, which add a bias, optionally a tensor, and apply relu.

`CONVOLUTION_RELU` takes (x, weight, bias, stride, padding, dilation, groups), and
`CONVOLUTION_ADD_RELU` (x, weight, other, factor of other, bias, stride, padding, dilation, groups).
They keep NaN, like PyTorch's relu. Without a bias they allocate one of zeros in each call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nimble_fx.torch_internals.memory_formats import suggests_channels_last
from nimble_fx.torch_internals.names import Missing, has_kernel_for_dispatch_key, lookup

CONVOLUTION_RELU = lookup("torch.ops.aten.cudnn_convolution_relu.default")
CONVOLUTION_ADD_RELU = lookup("torch.ops.aten.cudnn_convolution_add_relu.default")

FILTER_POSITION = {CONVOLUTION_RELU: 1, CONVOLUTION_ADD_RELU: 1}
"""The position of the weight among the arguments."""

DTYPES = {torch.float16, torch.bfloat16, torch.float32}
"""The types that cuDNN takes in the channels-last format, and in the fused operators."""


def in_its_format(result: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The result of a convolution, in the memory format that PyTorch has cuDNN return.

    Args:
        result, x, weight: tensors without data.
    """
    takes_any = {x.dtype, weight.dtype} <= DTYPES
    is_last = takes_any and any(map(suggests_channels_last, (x, weight)))
    memory_format = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty_like(result, memory_format=memory_format)


def is_enabled() -> bool:
    """Whether convolutions on a GPU are cuDNN's, and the user has not turned it off."""
    backend: Any = torch.backends.cudnn
    return _are_here and bool(backend.enabled) and torch.version.hip is None


def is_deterministic() -> bool:
    """Whether the user asks for deterministic kernels, which the fused operators do not offer."""
    backend: Any = torch.backends.cudnn
    return bool(backend.deterministic) or torch.are_deterministic_algorithms_enabled()


def _convolution_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The Meta kernel of `CONVOLUTION_RELU`, which PyTorch lacks."""
    window = (stride, padding, dilation, False, [0] * len(stride), groups)
    result: Tensor = torch.ops.aten.convolution.default(x, weight, bias, *window)
    return in_its_format(result, x, weight)


def _convolution_add_relu(
    x: Tensor,
    weight: Tensor,
    other: Tensor,
    _factor: float | None,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The Meta kernel of `CONVOLUTION_ADD_RELU`, which PyTorch lacks."""
    result = _convolution_relu(x, weight, bias, stride, padding, dilation, groups)
    if result.shape != other.shape:
        raise ValueError(f"adds a tensor of {list(other.shape)} to one of {list(result.shape)}")
    return result


_META: dict[Any, Callable[..., Tensor]] = {
    CONVOLUTION_RELU: _convolution_relu,
    CONVOLUTION_ADD_RELU: _convolution_add_relu,
}
_are_here = not any(isinstance(operator, Missing) for operator in _META)
_meta_kernels: Any = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
for _operator, _returns in _META.items() if _are_here else ():
    if not has_kernel_for_dispatch_key(_operator.name(), "Meta"):
        _meta_kernels.impl(_operator, _returns)
