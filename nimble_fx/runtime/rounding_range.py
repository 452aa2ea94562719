"""Which elements of a program's results rounding decides, and between which values."""

import torch
from torch import Tensor

from nimble_fx.runtime.reference_runs import numeric


class RoundingRange:
    """The values that an output has in runs with different rounding errors.

    Attributes:
        shapes: the shapes of the output in these runs.
    """

    # The least and the greatest value of each element that is not NaN, in float64 or int64; those
    # of a complex element's two parts are in a last dimension. None if the shapes differ.
    _low: Tensor | None
    _high: Tensor | None

    def __init__(self, first: Tensor) -> None:
        self.shapes = {first.shape}
        self._low = self._high = numbers = _numbers(first)
        self._some_nan = self._all_nan = numbers.isnan()

    def add(self, other: Tensor) -> None:
        """Adds the output of another run."""
        self.shapes.add(other.shape)
        if self._low is None or self._high is None or len(self.shapes) > 1:
            self._low = self._high = None
            return
        numbers = _numbers(other)
        self._low, self._high = torch.fmin(self._low, numbers), torch.fmax(self._high, numbers)
        is_nan = numbers.isnan()
        self._some_nan, self._all_nan = self._some_nan | is_nan, self._all_nan & is_nan

    def undecided(self, dtype: torch.dtype) -> Tensor:
        """Whether rounding decides each element, rather than changing it a little.

        Args:
            dtype: the type, not of integers, in which the program computes the output: a number
                that differs by more than the square root of its epsilon is another number, and
                so is one that is infinite in some runs only.
        """
        low, high = self._bounds()
        differ: Tensor = high - low
        size = torch.maximum(low.abs(), high.abs())
        usual = size[size.isfinite()].square().mean().sqrt().nan_to_num()
        is_other: Tensor = differ > torch.finfo(dtype).eps ** 0.5 * torch.maximum(size, usual)
        is_other |= differ.isinf() | (self._some_nan & ~self._all_nan)
        return is_other.any(-1) if dtype.is_complex else is_other

    def has_shape(self, shape: torch.Size) -> bool:
        """Whether a shape is that of all runs, in the dimensions in which these agree."""
        if any(len(each) != len(shape) for each in self.shapes):
            return False
        sizes = zip(shape, *self.shapes, strict=True)
        return all(size in others or len({*others}) > 1 for size, *others in sizes)

    def has_numbers(self, result: Tensor) -> bool:
        """Whether integers are those of all runs, or where these differ, between such as occur."""
        low, high = self._bounds()
        numbers, is_open = _numbers(result), low != high
        if not torch.equal(numbers[~is_open], low[~is_open]):
            return False
        if not is_open.any():
            return True
        least, most = low[is_open].min(), high[is_open].max()
        return bool(((least <= numbers[is_open]) & (numbers[is_open] <= most)).all())

    def _bounds(self) -> tuple[Tensor, Tensor]:
        if self._low is None or self._high is None:
            raise ValueError("the runs have different shapes")
        return self._low, self._high


def _numbers(value: Tensor) -> Tensor:
    found = numeric(value)
    return torch.view_as_real(found) if found.is_complex() else found
