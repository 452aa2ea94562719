"""Which elements of a program's results rounding decides, and between which values."""

import torch
from torch import Tensor

from nimble_fx.runtime.reference_runs import numeric


class RoundingRange:
    """The values that an output has in runs with different rounding errors.

    Attributes:
        shapes: the shapes of the output in these runs.
        low, high: the least and the greatest value of each element that is not NaN, in float64 or
            int64; those of a complex element's two parts are in a last dimension. None if the
            shapes differ.
    """

    def __init__(self, first: Tensor) -> None:
        self.shapes = {first.shape}
        self.low: Tensor | None = _numbers(first)
        self.high: Tensor | None = self.low
        self._some_nan = self._all_nan = self.low.isnan()

    def add(self, other: Tensor) -> None:
        """Adds the output of another run."""
        self.shapes.add(other.shape)
        if self.low is None or self.high is None or len(self.shapes) > 1:
            self.low = self.high = None
            return
        numbers = _numbers(other)
        self.low, self.high = torch.fmin(self.low, numbers), torch.fmax(self.high, numbers)
        is_nan = numbers.isnan()
        self._some_nan, self._all_nan = self._some_nan | is_nan, self._all_nan & is_nan

    def undecided(self, dtype: torch.dtype) -> Tensor:
        """Whether rounding decides each element, rather than changing it a little.

        Args:
            dtype: the type in which the program computes the output: a number that differs by more
                than the square root of its epsilon is another number.
        """
        if self.low is None or self.high is None:
            raise ValueError("the runs have different shapes")
        differ: Tensor = self.high - self.low
        if not (dtype.is_floating_point or dtype.is_complex):
            return differ != 0
        size = torch.maximum(self.low.abs(), self.high.abs())
        usual = size[size.isfinite()].square().mean().sqrt().nan_to_num()
        is_other: Tensor = differ > torch.finfo(dtype).eps ** 0.5 * torch.maximum(size, usual)
        is_other |= self._some_nan & ~self._all_nan
        return is_other.any(-1) if dtype.is_complex else is_other

    def has_shape(self, shape: torch.Size) -> bool:
        """Whether a shape is that of all runs, in the dimensions in which these agree."""
        if any(len(each) != len(shape) for each in self.shapes):
            return False
        sizes = zip(shape, *self.shapes, strict=True)
        return all(size in others or len({*others}) > 1 for size, *others in sizes)

    def has_numbers(self, result: Tensor) -> bool:
        """Whether integers are those of all runs, or where these differ, between such as occur."""
        if self.low is None or self.high is None:
            raise ValueError("the runs have different shapes")
        numbers, is_open = _numbers(result), self.low != self.high
        if not torch.equal(numbers[~is_open], self.low[~is_open]):
            return False
        if not is_open.any():
            return True
        least, most = self.low[is_open].min(), self.high[is_open].max()
        return bool(((least <= numbers[is_open]) & (numbers[is_open] <= most)).all())


def _numbers(value: Tensor) -> Tensor:
    found = numeric(value)
    return torch.view_as_real(found) if found.is_complex() else found
