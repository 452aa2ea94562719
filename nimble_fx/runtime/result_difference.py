"""Says how a result differs from those of the traced graph, by PyTorch's rule for accuracy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nimble_fx.runtime.reference_runs import numeric, wide
from nimble_fx.torch_internals.names import lookup

_same = lookup("torch._dynamo.utils.same")

MIN_SCALE = 2**-12
"""Smaller values may be what rounding leaves of larger ones that cancel each other."""


def is_equal(expected: Any, result: Any) -> bool:
    """Whether two results are equal; NaN equals NaN."""
    if not isinstance(expected, Tensor):
        return True
    is_alike = (expected.shape, expected.dtype) == (result.shape, result.dtype)
    if not is_alike or expected.layout is not torch.strided:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, result)
    return torch.allclose(wide(expected), wide(result), rtol=0, atol=0, equal_nan=True)


def difference(expected: Any, result: Any, exact: Any) -> str | None:
    """How a result differs from the graph's; None if it is as accurate.

    Args:
        expected: the graph's result, in its own types.
        result: the program's.
        exact: the graph's result in float64.
    """
    if not isinstance(expected, Tensor):
        return None
    if result.dtype != expected.dtype:
        return f"is {result.dtype}, not {expected.dtype}"
    if not expected.shape == result.shape == exact.shape:
        return f"has the shape {list(result.shape)}, not {list(expected.shape)}"
    if _has_other_nan(expected, result, exact):
        return "has NaN in other places"
    comparable = map(_computable, _without_nan(expected, result, exact))
    if not _same(*_scaled(*comparable), equal_nan=True, log_error=lambda *_, **__: None):
        error = (numeric(result) - numeric(exact)).abs().max().item()
        return f"is off float64 by up to {error:.3g}"
    return None


def _has_other_nan(expected: Tensor, result: Tensor, exact: Tensor) -> bool:
    """Whether a result is NaN where the graph's are not, or the reverse.

    Where the graph's results in its own types and in float64 differ, either is right.
    """
    if expected.layout is not torch.strided:
        return False
    one, ours, other = expected.isnan(), result.isnan(), exact.isnan()
    return bool(((one & other & ~ours) | (ours & ~one & ~other)).any())


def _without_nan(*values: Tensor) -> Sequence[Tensor]:
    """The values with 0 where any is NaN: PyTorch's rule accepts all others if one is."""
    if any(value.layout is not torch.strided for value in values):
        return values
    is_nan = torch.stack([value.isnan() for value in values]).any(0)
    return [value.masked_fill(is_nan, 0) for value in values] if is_nan.any() else values


def _computable(value: Tensor) -> Tensor:
    """The value in a type with arithmetic: float8 and complex32 have none on a CPU."""
    if value.dtype is torch.complex32:
        return value.to(torch.complex64)
    return value.float() if value.is_floating_point() and value.itemsize == 1 else value


def _scaled(expected: Tensor, result: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors divided by the root mean square of the exact values, or by `MIN_SCALE`.

    PyTorch's tolerance is for values of about 1.
    """
    if not ((exact.is_floating_point() or exact.is_complex()) and exact.numel()):
        return expected, result, exact
    rms = exact.abs().square().mean().sqrt().item()
    scale = max(rms, MIN_SCALE) if 0 < rms < torch.inf else 1
    return expected / scale, result / scale, exact / scale
