"""Symbolic sizes: comparisons, and their SymPy expressions as text."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import SymBool, SymFloat, SymInt

from nimble_fx.torch_internals.names import lookup

_Printer = lookup("torch.utils._sympy.printers.PythonPrinter")
_has_free_unbacked = lookup("torch.fx.experimental.symbolic_shapes.free_unbacked_symbols")
_is_always_true = lookup("torch.fx.experimental.symbolic_shapes.statically_known_true")


NUMBERS = (int, float, bool, SymInt, SymFloat, SymBool)
"""The types of numbers, known or symbolic."""

Number = int | float | bool | SymInt | SymFloat | SymBool


def python_text(size: int | SymInt) -> str:
    """A size as Python text, such as "4*s77", as Inductor writes it."""
    text: str = _Printer().doprint(_expression(size))
    return text


def are_known(sizes: Iterable[int | SymInt]) -> bool:
    """Whether all sizes are plain numbers."""
    return all(type(size) is int for size in sizes)


def hint(number: Number) -> float | None:
    """The value of a number in the call that a graph is compiled for; None if it depends on data.

    Adds no guard.
    """
    if not isinstance(number, (SymInt, SymFloat, SymBool)):
        return number
    value = number.node.hint
    return value if isinstance(value, (int, float)) else None


def known_number(size: int | SymInt) -> int | None:
    """The value of a size, if it is the same for all values of its symbols; else None."""
    if isinstance(size, int):
        return size
    number = size.node.maybe_as_int()
    return number if number is None else int(number)


def is_same_size(one: int | SymInt, other: int | SymInt) -> bool:
    """Whether two sizes are equal for all values of their symbols; adds no guard.

    False if that cannot be proved.
    """
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    difference = _expression(one) - _expression(other)
    return bool(difference.expand() == 0) or bool(_is_always_true(one == other))


def is_guarded_same(one: int | SymInt, other: int | SymInt) -> bool:
    """Whether two sizes are equal in this call; adds a guard that they are equal in later ones.

    Adds no guard if they are equal for all values of their symbols.
    """
    if is_same_size(one, other):
        return True
    symbolic = next((n for n in (one, other) if isinstance(n, SymInt)), None)
    takes_guards = symbolic is not None and not symbolic.node.shape_env.frozen
    return takes_guards and bool(one == other)


def are_same_sizes(some: Sequence[int | SymInt], others: Sequence[int | SymInt]) -> bool:
    """`is_same_size` for two lists."""
    return len(some) == len(others) and all(map(is_same_size, some, others))


def are_guarded_same(some: Sequence[int | SymInt], others: Sequence[int | SymInt]) -> bool:
    """`is_guarded_same` for two lists."""
    return len(some) == len(others) and all(map(is_guarded_same, some, others))


def has_unbacked_size(value: object) -> bool:
    """Whether a size, or one of a tensor's sizes, is only known when the program runs."""
    return bool(_has_free_unbacked(value))


def _expression(size: int | SymInt) -> Any:
    return size if isinstance(size, int) else size.node.expr
