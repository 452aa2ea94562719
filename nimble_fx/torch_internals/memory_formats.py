"""In which memory format an image is."""

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import lookup

_suggested = lookup("torch._prims_common.suggest_memory_format")


def is_channels_last(image: Tensor) -> bool:
    """Whether an image is in the channels-last format, and not in the default format too.

    One of a single channel or pixel is in both, and kernels may take either for its result.
    """
    is_last = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
    return is_last and not image.is_contiguous()


def suggests_channels_last(image: Tensor) -> bool:
    """Whether PyTorch's operators take an image to be in the channels-last format.

    Where it is in both, the strides of dimensions of one element decide.
    """
    return image.dim() == 4 and _suggested(image) == torch.channels_last
