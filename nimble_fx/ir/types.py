"""The types of values: of tensors, of numbers on the host, and of several results."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch

Size = int | str
"""A size: a number, or a symbolic expression such as "s0*2"."""

_DTYPE_NAMES = {
    torch.bool: "b8",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape, stride, dtype and device of a tensor, and whether it is read as another.

    Attributes:
        is_conj: whether PyTorch conjugates what is in memory when it reads the tensor.
        is_neg: whether it negates that.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    is_conj: bool = False
    is_neg: bool = False

    def __str__(self) -> str:
        bits = " conjugated" * self.is_conj + " negated" * self.is_neg
        return f"{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]{bits}"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A number on the host: a size that is known when the program runs, or a constant."""

    expression: str

    def __str__(self) -> str:
        return f"Sym({self.expression})"


@dataclass(frozen=True, slots=True)
class TupleType:
    """The types of an operator's several results; None for a result that is absent."""

    items: tuple["Type | None", ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Type = TensorType | ScalarType | TupleType


def tensor_types(of: Type | None) -> Iterator[TensorType]:
    """The types of the tensors in a value, which may be a tuple."""
    if isinstance(of, TensorType):
        yield of
    elif isinstance(of, TupleType):
        yield from chain.from_iterable(map(tensor_types, of.items))


def dtype_name(dtype: torch.dtype) -> str:
    """A short name: f32, bf16, i64, b8, ..."""
    if dtype in _DTYPE_NAMES:
        return _DTYPE_NAMES[dtype]
    name = str(dtype).removeprefix("torch.")
    return name.replace("float", "f").replace("uint", "u").replace("int", "i")
