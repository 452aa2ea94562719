"""The memory formats of images."""

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import lookup

_suggested = lookup("torch._prims_common.suggest_memory_format")


def is_channels_last(image: Tensor) -> bool:
    """Whether an image is in the channels-last format, and not also in the default format.

    An image of a single channel or pixel is in both, and kernels may return either.
    """
    is_last = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
    return is_last and not image.is_contiguous()


def suggests_channels_last(image: Tensor) -> bool:
    """Whether PyTorch's operators treat an image as one in the channels-last format.

    If it is in both formats, the strides of dimensions of size 1 decide.
    """
    return image.dim() == 4 and _suggested(image) == torch.channels_last
