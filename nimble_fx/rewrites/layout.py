"""Shapes and strides as plain numbers: those of the call that a graph is compiled for."""

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from nimble_fx.ir.symbolic_sizes import extent
from nimble_fx.torch_internals.memory_formats import contiguous_order, suggested_format
from nimble_fx.torch_internals.symbolic import hint


@dataclass(frozen=True)
class Layout:
    """The shape and strides of a tensor in the call that the graph is compiled for."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(value: Tensor) -> "Layout | None":
        """The layout of a fake tensor; None if its sizes depend on data."""
        sizes = [*map(hint, value.shape), *map(hint, value.stride())]
        known = tuple(int(n) for n in sizes if n is not None)
        return Layout(known[: value.dim()], known[value.dim() :]) if None not in sizes else None

    def with_strides(self, strides: tuple[int, ...]) -> "Layout":
        """The same shape with other strides."""
        return Layout(self.shape, strides)

    @property
    def is_contiguous(self) -> bool:
        """Whether it is contiguous in the order of its dimensions."""
        from_last = accumulate((1, *self.shape[:0:-1]), mul)
        return self.is_like(self.with_strides(tuple(from_last)[::-1][: len(self.shape)]))

    @property
    def is_image(self) -> bool:
        """Whether PyTorch's operators may take it for images, or volumes."""
        return len(self.shape) in (4, 5)

    @property
    def has_one_pixel(self) -> bool:
        """Whether it is an image of a single pixel for each channel."""
        return self.is_image and all(n == 1 for n in self.shape[2:])

    @property
    def format(self) -> torch.memory_format:
        """The memory format in which PyTorch's operators treat it."""
        return suggested_format(self.on("meta")) if self.is_image else torch.contiguous_format

    @property
    def is_by_default(self) -> bool:
        """Whether it is contiguous, and is not also treated as an image in the other format."""
        return self.is_contiguous and (
            1 not in self.shape or self.format is torch.contiguous_format
        )

    @property
    def order(self) -> list[int] | None:
        """The order of dimensions in which it is contiguous; None if there is none."""
        return contiguous_order(self.on("meta"))

    def is_like(self, other: "Layout") -> bool:
        """Whether strides are equal, except where the size is 1, or if there are no elements."""
        dimensions = zip(self.shape, self.strides, other.strides, strict=True)
        return 0 in self.shape or all(n == 1 or a == b for n, a, b in dimensions)

    def on(self, device: str | torch.device, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Zeros of this layout."""
        memory = torch.zeros(extent(self.shape, self.strides), dtype=dtype, device=device)
        return memory.as_strided(self.shape, self.strides)
