"""The memory formats of images, and the orders of dimensions in memory."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import lookup
from nimble_fx.torch_internals.symbolic import are_same_sizes, hint

suggested_format: Callable[[Tensor], torch.memory_format] = lookup(
    "torch._prims_common.suggest_memory_format"
)
"""The memory format in which PyTorch's operators treat images, and return results."""


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
    return image.dim() == 4 and suggested_format(image) == torch.channels_last


def contiguous_order(tensor: Tensor) -> list[int] | None:
    """The order of dimensions in which a tensor is contiguous; None if there is none."""
    order = list(range(tensor.dim()))
    pairs = [(hint(tensor.stride(i)), hint(tensor.size(i))) for i in order]
    known = [(stride, size) for stride, size in pairs if None not in (stride, size)]
    if not _has_default_strides(tensor) and len(known) == len(pairs):
        order.sort(key=lambda i: known[i], reverse=True)
    return order if _has_default_strides(tensor.permute(order)) else None


def inverse_order(order: Sequence[int]) -> list[int]:
    """The order of dimensions that `permute` needs to undo one."""
    return [order.index(i) for i in range(len(order))]


def _has_default_strides(tensor: Tensor) -> bool:
    """Whether its strides equal a new tensor's, also in dimensions of size 1."""
    from_last = accumulate((1, *reversed(tensor.shape[1:])), mul)
    return tensor.dim() == 0 or are_same_sizes(tensor.stride()[::-1], list(from_last))
