"""The kinds of values in random ATen programs: operands of a kind are interchangeable."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Kind:
    """A shape and a type of elements.

    Attributes:
        what: in words.
        of: a value of that other kind may be read where this one is asked for, not written: its
            elements may share memory.
    """

    what: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def example(self, generator: torch.Generator, device: str | torch.device = "cpu") -> Tensor:
        """A new tensor; the same bits on each device. Integers are indices, from 0 to 3."""
        if self.dtype.is_floating_point or self.dtype.is_complex:
            made = torch.randn(self.shape, generator=generator, dtype=self.dtype)
        else:
            made = torch.randint(4, self.shape, generator=generator).to(self.dtype)
        return made.to(device)


INDEX, MASK, DOUBLE, COMPLEX = torch.int64, torch.bool, torch.float64, torch.complex64

KINDS = {
    "m": Kind("matrix", (4, 4)),
    "v": Kind("vector", (4,)),
    "s": Kind("scalar", ()),
    "c": Kind("column", (4, 1)),
    "f": Kind("four", (2, 2)),
    "g": Kind("batch of matrices", (2, 4, 4)),
    "h": Kind("tall matrix", (8, 4)),
    "q": Kind("matrix in four dimensions", (2, 2, 2, 2)),
    "o": Kind("nothing, in four columns", (0, 4)),
    "i": Kind("images", (2, 4, 4, 4)),
    "j": Kind("small images", (2, 4, 2, 2)),
    "k": Kind("kernels", (4, 4, 3, 3)),
    "x": Kind("indices", (4,), INDEX),
    "n": Kind("matrix of indices", (4, 4), INDEX),
    "b": Kind("mask", (4, 4), MASK),
    "d": Kind("matrix of doubles", (4, 4), DOUBLE),
    "z": Kind("complex matrix", (4, 4), COMPLEX),
    "e": Kind("matrix whose elements share memory", (4, 4)),
    "_": Kind("nothing that a program may use", ()),
}
READABLE_AS = {kind: (kind, "e") if kind == "m" else (kind,) for kind in KINDS}
"""A matrix whose elements share memory can be read as any other, but not written."""
