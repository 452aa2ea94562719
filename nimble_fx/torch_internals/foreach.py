"""Copies of lists of tensors, in one kernel if all have one dtype and device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import Missing, lookup

foreach_copy = lookup("torch._foreach_copy_")
_foreach_clone = lookup("torch._foreach_clone")


def foreach_clone(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copies of some tensors, with the same strides if these leave no gaps."""
    if isinstance(_foreach_clone, Missing):  # before PyTorch 2.13
        copies = [torch.empty_like(tensor) for tensor in tensors]
        foreach_copy(copies, tensors)
        return copies
    clones: Sequence[Tensor] = _foreach_clone(tensors)
    return clones
