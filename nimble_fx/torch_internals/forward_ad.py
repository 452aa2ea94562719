"""Forward-mode automatic differentiation: tensors that carry a tangent."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad


def is_dual_level() -> bool:
    """Whether forward-mode AD is on; it only compares a number, because every call asks this."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def carry_tangents(values: Iterable[Any]) -> bool:
    """Whether any of these is a tensor with a tangent, at the current level of forward-mode AD."""
    if not is_dual_level():
        return False
    tensors = (value for value in values if isinstance(value, Tensor))
    duals = (forward_ad.unpack_dual(each) for each in tensors)  # type: ignore[no-untyped-call]
    return any(dual.tangent is not None for dual in duals)
