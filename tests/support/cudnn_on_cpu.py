"""The values of cuDNN's fused convolutions, where there is no GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_aten = torch.ops.aten


def _convolution_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    zeros = torch.zeros((), dtype=x.dtype)
    window = (bias, stride, padding, dilation, groups)
    return _convolution_add_relu(x, weight, zeros, 1.0, *window)


def _convolution_add_relu(
    x: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: float | None,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    window = (stride, padding, dilation, False, [0] * len(stride), groups)
    return (_aten.convolution(x, weight, bias, *window) + (alpha or 0) * z).relu()


@contextmanager
def cudnn_on_cpu() -> Iterator[None]:
    """Meanwhile tensors of a CPU have the fused operators too, by those that they stand for."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("cudnn_convolution_relu", _convolution_relu, "CPU")
        library.impl("cudnn_convolution_add_relu", _convolution_add_relu, "CPU")
        yield
