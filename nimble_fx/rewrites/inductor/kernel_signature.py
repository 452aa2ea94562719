"""What the operator of a kernel takes and returns, and which of it the kernel gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

MAX_PARAMETERS = 64
"""The most parameters that PyTorch lets an operator have."""

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """A tensor's place in memory that begins with another's; the offset is in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class NewTensor:
    """A tensor that a kernel's operator allocates and returns."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def allocate(self) -> Tensor:
        """It, with nothing in it."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Taken:
    """A tensor that a kernel's operator takes: the kernel's text has its sizes and strides."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    is_written: bool


@dataclass(frozen=True)
class Argument:
    """A tensor that a kernel takes.

    Attributes:
        is_new: whether it is one that the operator allocates, or one that it takes.
        index: its position among these.
        layout: the part of it that the kernel sees; None for itself.
    """

    is_new: bool
    index: int
    layout: Layout | None = None


@dataclass(frozen=True)
class Signature:
    """What the operator of a kernel takes, returns, and hands to the kernel.

    Each tensor that the operator takes is a parameter. If these were more than `MAX_PARAMETERS`,
    those that are only read are one list, the first parameter.

    Attributes:
        taken: the tensors that the operator takes, in order.
        new: the tensors that it allocates, which it returns in this order.
        arguments: those of the kernel, in order: tensors and numbers.
    """

    taken: tuple[Taken, ...]
    new: tuple[NewTensor, ...]
    arguments: tuple[Argument | int, ...]

    @property
    def n_parameters(self) -> int:
        """How many parameters the operator has."""
        return len(self.operator_arguments(self.taken))

    @property
    def schema(self) -> str:
        """Its parameters and results, such as "(Tensor x0, Tensor(x1!) x1) -> Tensor"."""
        takes = ["Tensor(x{0}!) x{0}" if x.is_written else "Tensor x{0}" for x in self.taken]
        named = [each.format(i) for i, each in enumerate(takes)]
        if self._has_list:
            named = ["Tensor[] read", *self._written(named)]
        results = ", ".join(["Tensor"] * len(self.new))
        results = results if len(self.new) == 1 else f"({results})"
        return f"({', '.join(named)}) -> {results}"

    def operator_arguments(self, taken: Sequence[T]) -> list[T | list[T]]:
        """The arguments of a call of the operator, from the tensors that it takes, in order."""
        if not self._has_list:
            return [*taken]
        pairs = zip(taken, self.taken, strict=True)
        return [[value for value, each in pairs if not each.is_written], *self._written(taken)]

    def in_order(self, arguments: Sequence[Any]) -> list[Tensor]:
        """The tensors that the operator takes, in order, from the arguments of a call of it."""
        if not self._has_list:
            return [*arguments]
        read, written = iter(arguments[0]), iter(arguments[1:])
        return [next(written if each.is_written else read) for each in self.taken]

    @property
    def _has_list(self) -> bool:
        return len(self.taken) > MAX_PARAMETERS

    def _written(self, taken: Sequence[T]) -> list[T]:
        return [value for value, each in zip(taken, self.taken, strict=True) if each.is_written]
