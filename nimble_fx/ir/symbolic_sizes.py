"""Symbolic sizes as numbers, for what must be known in bytes and microseconds."""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.locked_ast import syntax_tree
from nimble_fx.ir.task_graph import ScalarType, Size, TaskGraph, TensorType, TupleType, Type

Sizes = Mapping[str, int]
"""What symbols are taken for, such as {"s0": 8}."""

Number = int | float

LARGEST = 2**63
MAX_LENGTH = 2000
"""A stranger's file must not ask for more digits, or deeper nesting, than fit."""


def _power(base: Number, exponent: Number) -> Number:
    """Of a few factors."""
    if exponent not in range(9):
        raise ValueError(f"a power of {exponent}")
    product: Number = base**exponent
    return product


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "CeilToInt": math.ceil,
    "CleanDiv": operator.floordiv,
    "FloatTrueDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "FloorToInt": math.floor,
    "IntTrueDiv": operator.truediv,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "ceiling": math.ceil,
    "floor": math.floor,
}
"""As PyTorch and SymPy print them."""


def concrete(graph: TaskGraph, sizes: Sizes) -> TaskGraph:
    """The graph with numbers for symbols, in the types of its values; itself if it has none.

    What depends on other symbols, as on data, stays as it is: whoever needs it is told by
    `number` or `numbers`.
    """
    if not any(_is_symbolic(value.type) for value in graph.values):
        return graph
    return graph.map_types(lambda of: _concrete(of, sizes))


def symbols_of(graph: TaskGraph) -> frozenset[str]:
    """The symbols in the sizes of its values. Cost: O(values)."""
    expressions = {size for value in graph.values for size in _expressions(value.type)}
    return frozenset(symbol for each in expressions for symbol in _symbols(each))


def symbols_in(kind: Type | None) -> frozenset[str]:
    """The symbols in the sizes of one value."""
    return frozenset(symbol for each in _expressions(kind) for symbol in _symbols(each))


def _expressions(kind: Type | None) -> Iterator[str]:
    match kind:
        case TupleType(items):
            for item in items:
                yield from _expressions(item)
        case ScalarType(expression):
            yield expression
        case TensorType(shape, stride):
            yield from (size for size in (*shape, *stride) if isinstance(size, str))


def _symbols(expression: str) -> list[str]:
    """The names in an expression, but for those of functions and truth values."""
    names: list[str] = re.findall(r"\b[A-Za-z_]\w*\b(?!\()", expression)
    return [name for name in names if name not in ("True", "False", "inf", "nan")]


def _is_symbolic(kind: Type | None) -> bool:
    if isinstance(kind, TupleType):
        return any(map(_is_symbolic, kind.items))
    if not isinstance(kind, TensorType):
        return isinstance(kind, ScalarType)
    return any(isinstance(size, str) for size in (*kind.shape, *kind.stride))


def _concrete(kind: Type | None, sizes: Sizes) -> Type | None:
    match kind:
        case ScalarType(expression):
            return ScalarType(str(_known(expression, sizes)))
        case TensorType(shape, stride):
            shape, stride = (tuple(_known(n, sizes) for n in each) for each in (shape, stride))
            return replace(kind, shape=shape, stride=stride)
    return kind


def _known(size: Size, sizes: Sizes) -> Size:
    """A size as a number, where it is known."""
    try:
        return number(size, sizes)
    except UnsupportedError:
        return size


def number(size: Size, sizes: Sizes) -> int:
    """A size as a number.

    Raises:
        UnsupportedError: it depends on a symbol that `sizes` does not have, or in an unknown way.
    """
    return size if isinstance(size, int) else _number(size, tuple(sorted(sizes.items())))


def numbers(sizes: Iterable[Size]) -> list[int]:
    """Sizes of a `concrete` graph.

    Raises:
        UnsupportedError: one of them is symbolic.
    """
    return [number(size, {}) for size in sizes]


@lru_cache(maxsize=4096)
def _number(expression: str, sizes: tuple[tuple[str, int], ...]) -> int:
    """An expression's value. It is read, not run: it may be from a stranger's file."""
    try:
        if len(expression) > MAX_LENGTH:
            raise ValueError(f"it has {len(expression)} characters")
        match syntax_tree(expression).body:
            case [ast.Expr(value)]:
                return int(_value(value, dict(sizes)))
        raise ValueError("it is no expression")
    except (ArithmeticError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise UnsupportedError(f"the size {expression} is not known: {error}") from error


def _value(node: ast.expr, sizes: Sizes) -> Number:
    value = _worth(node, sizes)
    if abs(value) > LARGEST:
        raise ValueError("it is larger than any size")
    return value


def _worth(node: ast.expr, sizes: Sizes) -> Number:
    match node:
        case ast.Constant(int() | float() as value):
            return value
        case ast.Name(name):
            if name not in sizes:
                raise ValueError(f"nothing says what {name} is")
            return sizes[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, sizes)
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left, sizes), _value(right, sizes))
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[_value(argument, sizes) for argument in arguments])
    raise ValueError(f"it has {ast.unparse(node)}")


def n_elements(of: TensorType) -> int:
    """The number of elements of a tensor.

    Raises:
        UnsupportedError: a size is symbolic.
    """
    return math.prod(numbers(of.shape))


def extent(shape: Iterable[int], stride: Iterable[int]) -> int:
    """The number of elements from the first of a tensor to its last, gaps included."""
    steps = list(zip(shape, stride, strict=True))
    return 1 + sum((n - 1) * step for n, step in steps) if all(n for n, _ in steps) else 0
