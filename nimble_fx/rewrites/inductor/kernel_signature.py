"""The signature of a kernel's operator, and which of its tensors the kernel gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from nimble_fx.ir.types import Size
from nimble_fx.rewrites.inductor.kernel_sizes import symbols_in, value_of
from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS

T = TypeVar("T")
Sized = TypeVar("Sized", "ViewLayout", "NewTensor", "Taken")


@dataclass(frozen=True)
class ViewLayout:
    """A tensor's sizes, strides and offset (in elements) in the memory of another tensor."""

    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


@dataclass(frozen=True)
class NewTensor:
    """A tensor that a kernel's operator allocates and returns."""

    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: str

    def allocate(self) -> Tensor:
        """Allocates the tensor, uninitialized; its sizes are numbers or SymInts."""
        size: Any = self.size
        stride: Any = self.stride
        return torch.empty_strided(size, stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Taken:
    """A tensor that a kernel's operator takes; the kernel's text assumes all but its values."""

    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    is_written: bool


@dataclass(frozen=True)
class Argument:
    """A tensor that a kernel takes.

    Attributes:
        is_new: whether the operator allocates the tensor; otherwise it takes it.
        index: the tensor's position among the new or the taken tensors.
        layout: the part of the tensor that the kernel gets; None for the whole.
    """

    is_new: bool
    index: int
    layout: ViewLayout | None = None

    def mapped(self, of: Callable[[Size], Any]) -> "Argument":
        """The argument with `of(size)` for each size of its layout."""
        if self.layout is None:
            return self
        layout = replace(_mapped(self.layout, of), offset=of(self.layout.offset))
        return replace(self, layout=layout)


@dataclass(frozen=True)
class Signature:
    """What the operator of a kernel takes and returns, and what it passes to the kernel.

    Each tensor that the operator takes is a parameter. If that made more than `MAX_PARAMETERS`, the
    first parameter is a list of the tensors that are only read. The last parameters are the symbols
    of symbolic sizes.

    Attributes:
        taken: the tensors that the operator takes, in order.
        new: the tensors that it allocates, which it returns in this order.
        arguments: the kernel's arguments, in order: tensors and numbers.
    """

    taken: tuple[Taken, ...]
    new: tuple[NewTensor, ...]
    arguments: tuple[Argument | Size, ...]

    @cached_property
    def symbols(self) -> list[str]:
        """The symbols in its sizes and numbers."""
        sizes = list[Size]()
        self._mapped(sizes.append)
        return symbols_in(sizes)

    def at(self, values: Sequence[Any]) -> "Signature":
        """The signature with values for its symbols, in order: numbers or SymInts."""
        known = dict(zip(self.symbols, values, strict=True))
        return self._mapped(lambda size: value_of(size, known)) if known else self

    def _mapped(self, of: Callable[[Size], Any]) -> "Signature":
        """The signature with `of(size)` for each size and number."""
        return Signature(
            tuple(_mapped(each, of) for each in self.taken),
            tuple(_mapped(each, of) for each in self.new),
            tuple(
                each.mapped(of) if isinstance(each, Argument) else of(each)
                for each in self.arguments
            ),
        )

    @property
    def n_parameters(self) -> int:
        """How many parameters the operator has."""
        return len(self.operator_arguments(self.taken)) + len(self.symbols)

    @property
    def schema(self) -> str:
        """The operator's schema, such as "(Tensor x0, Tensor(x1!) x1) -> Tensor"."""
        takes = ["Tensor(x{0}!) x{0}" if x.is_written else "Tensor x{0}" for x in self.taken]
        named = [each.format(i) for i, each in enumerate(takes)]
        if self._has_list:
            named = ["Tensor[] read", *self._written(named)]
        named += [f"SymInt {symbol}" for symbol in self.symbols]
        results = ", ".join(["Tensor"] * len(self.new))
        results = results if len(self.new) == 1 else f"({results})"
        return f"({', '.join(named)}) -> {results}"

    def operator_arguments(self, taken: Sequence[T]) -> list[T | list[T]]:
        """The tensor arguments of the operator, for the tensors that it takes, in order."""
        if not self._has_list:
            return [*taken]
        pairs = zip(taken, self.taken, strict=True)
        return [[value for value, each in pairs if not each.is_written], *self._written(taken)]

    def in_order(self, arguments: Sequence[Any]) -> list[Tensor]:
        """The tensors that the operator takes, in order, from its tensor arguments."""
        if not self._has_list:
            return [*arguments]
        read, written = iter(arguments[0]), iter(arguments[1:])
        return [next(written if each.is_written else read) for each in self.taken]

    @cached_property
    def _has_list(self) -> bool:
        return len(self.taken) + len(self.symbols) > MAX_PARAMETERS

    def _written(self, taken: Sequence[T]) -> list[T]:
        return [value for value, each in zip(taken, self.taken, strict=True) if each.is_written]


def _mapped(each: Sized, of: Callable[[Size], Any]) -> Sized:
    return replace(each, size=tuple(map(of, each.size)), stride=tuple(map(of, each.stride)))
