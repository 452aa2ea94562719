"""The types of the mean and deviation that normalizations of half precision return.

With weights in single precision, as under autocast, PyTorch's CPU kernels return these in single
precision, and their backward kernels take no other. PyTorch's shape functions promise half
precision.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten

NORMALIZATIONS = (
    _aten._batch_norm_with_update.default,
    _aten._batch_norm_with_update_functional.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit_no_training.default,
    _aten.native_batch_norm.default,
    _aten.native_group_norm.default,
    _aten.native_layer_norm.default,
)
STATISTICS = (1, 2)
"""Which of their results are the mean and the deviation."""

_HALF = (torch.float16, torch.bfloat16)


def has_single_statistics(target: object, operands: Sequence[Tensor]) -> bool:
    """Whether a normalization returns its statistics in single precision, whatever it promises.

    Args:
        target: any operator.
        operands: the tensors among its arguments; of a normalization, what it normalizes is first.
    """
    if target not in NORMALIZATIONS or not operands:
        return False
    first, *others = operands
    is_half = first.device.type == "cpu" and first.dtype in _HALF
    return is_half and any(other.dtype == torch.float32 for other in others)


def with_single_statistics(results: Any) -> tuple[Any, ...]:
    """Fake results of a normalization, with others for its statistics, in single precision."""
    return tuple(
        torch.empty_like(value, dtype=torch.float32) if place in STATISTICS else value
        for place, value in enumerate(results)
    )
