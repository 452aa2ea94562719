"""Sizes as Inductor writes them: numbers, or Python expressions of symbols as text."""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import SymInt, Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.locked_ast import syntax_tree
from nimble_fx.ir.types import Size
from nimble_fx.torch_internals.symbolic import known_number, python_text

_OPERATORS: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": torch.sym_max,
    "min": torch.sym_min,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "torch.sym_float": torch.sym_float,
}
_TO_FLOAT, _TO_INT = {operator.truediv, torch.sym_float}, {math.ceil, math.floor, math.trunc}


def size_of(size: int | SymInt) -> Size:
    """A size of a fake tensor as a number, or text if it is symbolic."""
    number = known_number(size)
    return number if number is not None else python_text(size)


def permutation(tensor: Tensor, size: Sequence[Size], stride: Sequence[Size]) -> list[int] | None:
    """The order in which a tensor's dimensions have these sizes and strides.

    Returns:
        None if there is none but the tensor's own, or sizes and strides do not determine it.
    """
    own = list(zip(map(size_of, tensor.shape), map(size_of, tensor.stride()), strict=True))
    pairs = list(zip(size, stride, strict=True))
    if pairs == own or len(set(own)) < len(own) or set(pairs) != set(own):
        return None
    return [own.index(pair) for pair in pairs] if len(pairs) == len(own) else None


def index_at(tensor: Tensor, offset: Size) -> list[int] | None:
    """The indices of the element of a tensor that many elements of memory after its first.

    Returns:
        None if none is found: there is none, sizes are symbolic, or elements overlap.
    """
    sizes = [*map(size_of, tensor.shape), *map(size_of, tensor.stride()), offset]
    left = offset
    if not isinstance(left, int) or symbols_in(sizes):
        return None
    index = [0] * tensor.dim()
    for i in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if tensor.stride(i) > 0:
            index[i] = min(left // tensor.stride(i), tensor.shape[i] - 1)
            left -= index[i] * tensor.stride(i)
    return None if left else index


def symbols_in(sizes: Iterable[Size]) -> list[str]:
    """The symbols in the sizes, each once, sorted by name."""
    found: set[str] = set()
    for size in sizes:
        evaluated(size, found.add, lambda *_: None)
    return sorted(found)


def value_of(size: Size, symbols: Mapping[str, Any]) -> Any:
    """A size with values for its symbols: a number, or a SymInt if the values are SymInts."""
    return evaluated(size, symbols.__getitem__, lambda function, *args: function(*args))


def evaluated(size: Size, named: Callable[[str], Any], call: Callable[..., Any]) -> Any:
    """Evaluates a size in a domain of values other than numbers, such as nodes of a graph.

    Args:
        size: a number or text.
        named: returns the value of a symbol.
        call: returns the result of a function of sizes, for the function and its arguments.

    Raises:
        UnsupportedError: the text has a form that `is_size` does not know.
    """
    return size if isinstance(size, int) else _evaluated(_parsed(size), named, call)


def _evaluated(node: ast.expr, named: Callable[[str], Any], call: Callable[..., Any]) -> Any:
    match node:
        case ast.Constant(int() | float() as value):
            return value
        case ast.Name(name):
            return named(name)
        case ast.UnaryOp(ast.USub(), operand):
            function, args = operator.neg, [operand]
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
            function, args = _OPERATORS[type(operation)], [left, right]
        case ast.Call(called, args, []) if ast.unparse(called) in _FUNCTIONS:
            function = _FUNCTIONS[ast.unparse(called)]
        case _:
            raise UnsupportedError(f"Inductor wrote an unknown size: {ast.unparse(node):.200}")
    return call(function, *[_evaluated(arg, named, call) for arg in args])


def is_size(node: ast.expr) -> bool:
    """Whether an expression computes a whole number from numbers and names."""
    try:
        return isinstance(_evaluated(node, lambda _: 0, _zero), int)
    except UnsupportedError:
        return False


def _zero(function: Callable[..., Any], *args: int | float) -> int | float:
    """A zero of the type that a function of such numbers returns."""
    is_float = function in _TO_FLOAT or any(isinstance(each, float) for each in args)
    return 0.0 if is_float and function not in _TO_INT else 0


@lru_cache(maxsize=4096)
def _parsed(size: str) -> ast.expr:
    match syntax_tree(size).body:
        case [ast.Expr(value)]:
            return value
    raise UnsupportedError(f"Inductor wrote an unknown size: {size:.200}")


def sum_of(one: Size, other: Size) -> Size:
    """The sum of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return f"{one} + {other}"


def end_of(size: Sequence[Size], stride: Sequence[Size], offset: Size) -> Size:
    """The number of elements of memory up to the end of a view; 0 if the view is empty.

    Args:
        size, stride: the view's sizes and strides.
        offset: where in the memory the view begins, in elements.
    """
    steps = [f"(({n}) - 1) * ({step})" for n, step in zip(size, stride, strict=True)]
    are_any = [f"min(1, {n})" for n in size]
    end = " * ".join([f"({' + '.join([str(offset), '1', *steps])})", *are_any])
    return end if symbols_in([end]) else int(value_of(end, {}))
