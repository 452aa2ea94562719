"""Copies of lists of tensors of one dtype and device, in one kernel."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import Missing, lookup

foreach_copy = lookup("torch._foreach_copy_")
_foreach_clone = lookup("torch._foreach_clone")

_DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}


def takes_dtype(dtype: torch.dtype) -> bool:
    """Whether CUDA has these kernels for a dtype; for others, such as uint16, they raise."""
    return dtype in _DTYPES


def foreach_clone(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copies of some tensors, with the same strides if these leave no gaps."""
    if isinstance(_foreach_clone, Missing):  # before PyTorch 2.13
        copies = [torch.empty_like(tensor) for tensor in tensors]
        foreach_copy(copies, tensors)
        return copies
    clones: Sequence[Tensor] = _foreach_clone(tensors)
    return clones


def clone_each(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """As `foreach_clone`, for dtypes that it does not take."""
    return [tensor.clone() for tensor in tensors]
