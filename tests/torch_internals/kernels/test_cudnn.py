"""The Meta kernels of cuDNN's convolutions return PyTorch's formats, or raise errors."""

from typing import Any

import pytest
import torch

from nimble_fx.torch_internals.kernels.cudnn import CONVOLUTION_ADD_RELU, CONVOLUTION_RELU

DEFAULT, LAST = torch.contiguous_format, torch.channels_last
WINDOW = ([1, 1], [0, 0], [1, 1], 1)


def test_a_tensor_of_another_shape_is_not_added() -> None:
    x, weight, bias, other = (
        torch.empty(shape, device="meta")
        for shape in ((2, 4, 6, 6), (5, 4, 3, 3), (5,), (2, 5, 1, 1))
    )
    with pytest.raises(ValueError, match=r"adds a tensor of \[2, 5, 1, 1\] to one of \[2, 5, 4, 4"):
        CONVOLUTION_ADD_RELU(x, weight, other, 1.0, bias, *WINDOW)


@pytest.mark.parametrize(
    ("image_format", "weight_format", "dtype", "expected"),
    [
        (DEFAULT, DEFAULT, torch.float32, DEFAULT),
        (LAST, DEFAULT, torch.float32, LAST),
        (DEFAULT, LAST, torch.float16, LAST),
        (LAST, LAST, torch.bfloat16, LAST),
        (LAST, LAST, torch.float64, DEFAULT),
    ],
)
def test_the_result_is_channels_last_if_one_of_both_is_but_of_float64(
    image_format: torch.memory_format,
    weight_format: torch.memory_format,
    dtype: torch.dtype,
    expected: torch.memory_format,
) -> None:
    """As `cudnn_conv_suggest_memory_format` in PyTorch's aten/src/ATen/native/ConvUtils.h says."""
    kinds: dict[str, Any] = {"dtype": dtype, "device": "meta"}
    x = torch.empty((2, 4, 6, 6), memory_format=image_format, **kinds)
    weight = torch.empty((5, 4, 3, 3), memory_format=weight_format, **kinds)
    result = CONVOLUTION_RELU(x, weight, torch.empty(5, **kinds), *WINDOW)
    assert result.shape == (2, 5, 4, 4)
    assert result.is_contiguous(memory_format=expected)
