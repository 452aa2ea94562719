"""cuDNN's convolutions say of tensors without data what they would return, or refuse."""

import pytest
import torch

from nimble_fx.torch_internals.kernels.cudnn import CONVOLUTION_ADD_RELU

WINDOW = ([1, 1], [0, 0], [1, 1], 1)


def test_a_tensor_of_another_shape_is_not_added() -> None:
    x, weight, bias, other = (
        torch.empty(shape, device="meta")
        for shape in ((2, 4, 6, 6), (5, 4, 3, 3), (5,), (2, 5, 1, 1))
    )
    with pytest.raises(ValueError, match=r"adds a tensor of \[2, 5, 1, 1\] to one of \[2, 5, 4, 4"):
        CONVOLUTION_ADD_RELU(x, weight, other, 1.0, bias, *WINDOW)
