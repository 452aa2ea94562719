"""Checks that a contestant computes what eager does: compares both with float64.

Kernels of different libraries round differently, and so does eager; therefore the distance from
the exact result counts. A contestant's may be a few times eager's.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

TIMES_EAGER = 3.0
"""The allowed multiple of eager's distance, as in PyTorch's own benchmarks."""

ROUNDING = 1e-5
"""The relative distance that is always allowed: a few roundings of float32."""


class InaccurateError(Exception):
    """A contestant's result is too far from the exact one."""


@dataclass(frozen=True)
class Reference:
    """What a call should return.

    Attributes:
        eager: the result of eager PyTorch.
        exact: the same in float64.
    """

    eager: Sequence[Tensor]
    exact: Sequence[Tensor]

    def check(self, results: Sequence[Tensor]) -> float:
        """The greatest distance of a result from the exact one.

        Distances are root mean squares over that of the exact tensor, or over a thousandth of the
        largest tensor's if that is more: a gradient may be zero but for rounding.

        Raises:
            InaccurateError: a result has a different shape, or is too far from the exact one.
        """
        if len(results) != len(self.exact):
            raise InaccurateError(f"{len(results)} results instead of {len(self.exact)}")
        largest = max((_rms(exact) for exact in self.exact), default=0.0)
        triples = zip(results, self.eager, self.exact, strict=True)
        return max((_check(i, *triple, largest) for i, triple in enumerate(triples)), default=0.0)


def double(model: nn.Module) -> nn.Module:
    """A copy of the model in float64."""
    return copy.deepcopy(model).double()


def in_double(value: Any) -> Any:
    """A floating-point tensor in float64; any other value unchanged."""
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _check(i: int, result: Tensor, eager: Tensor, exact: Tensor, largest: float) -> float:
    if result.shape != exact.shape or result.dtype != eager.dtype:
        raise InaccurateError(f"result {i} is {_kind(result)} instead of {_kind(eager)}")
    size = max(_rms(exact), 1e-3 * largest)
    distance, eagers = _rms(result.double() - exact), _rms(eager.double() - exact)
    allowed = TIMES_EAGER * eagers + ROUNDING * size
    if not distance <= allowed:
        raise InaccurateError(
            f"result {i} is {distance:.3g} from float64's, eager's {eagers:.3g}, of {size:.3g}"
        )
    return distance / size if size else distance


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
