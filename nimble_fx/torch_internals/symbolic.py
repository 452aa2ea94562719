"""Symbolic sizes: their expressions, as SymPy has them and as text."""

from collections.abc import Sequence
from typing import Any

from torch import SymInt

from nimble_fx.torch_internals.names import lookup

_Printer = lookup("torch.utils._sympy.printers.PythonPrinter")
_has_free_unbacked = lookup("torch.fx.experimental.symbolic_shapes.free_unbacked_symbols")


def python_text(size: SymInt) -> str:
    """A size as Python's text, such as "4*s77", in the way in which Inductor writes it."""
    text: str = _Printer().doprint(size.node.expr)
    return text


def is_same_size(one: int | SymInt, other: int | SymInt) -> bool:
    """Whether two sizes are equal for all values of their symbols; adds no guard.

    False where SymPy does not see it.
    """
    if type(one) is int and type(other) is int:
        return one == other
    difference = _expression(one) - _expression(other)
    return bool(difference.expand() == 0)


def are_same_sizes(some: Sequence[int | SymInt], others: Sequence[int | SymInt]) -> bool:
    """Whether two lists are of equal sizes."""
    return len(some) == len(others) and all(map(is_same_size, some, others))


def depends_on_data(value: object) -> bool:
    """Whether a tensor, or a size, has a size that is not known before the program runs."""
    return bool(_has_free_unbacked(value))


def _expression(size: int | SymInt) -> Any:
    return size if isinstance(size, int) else size.node.expr
