"""The values of symbolic sizes, for whatever needs bytes and microseconds."""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.size_expressions import parsed
from nimble_fx.ir.task_graph import Input, TaskGraph
from nimble_fx.ir.types import ScalarType, Size, TensorType, TupleType, Type

Sizes = Mapping[str, int]
"""The value of each symbol, such as {"s0": 8}."""

Number = int | float

MAX_SIZE = 2**63
"""A limit for untrusted files, whose numbers could have any number of digits."""


def _power(base: Number, exponent: Number) -> Number:
    """The power, with an exponent from 0 to 8."""
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
    "Abs": abs,
    "CeilToInt": math.ceil,
    "CleanDiv": operator.floordiv,
    "FloatTrueDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "FloorToInt": math.floor,
    "Identity": operator.pos,
    "IntTrueDiv": operator.truediv,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "OpaqueUnaryFn_log2": math.log2,
    "OpaqueUnaryFn_sqrt": math.sqrt,
    "PowByNatural": _power,
    "PythonMod": operator.mod,
    "RoundToInt": round,
    "ToFloat": float,
    "TruncToFloat": lambda number: float(math.trunc(number)),
    "TruncToInt": math.trunc,
    "ceiling": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
}
"""Functions by the names that PyTorch and SymPy print."""


def concrete(graph: TaskGraph, sizes: Sizes) -> TaskGraph:
    """The graph with numbers for symbols in the types of its values; itself if it has no symbols.

    Sizes that depend on other symbols, such as data-dependent ones, stay symbolic: `number` and
    `numbers` raise on them.
    """
    if not any(_is_symbolic(value.type) for value in graph.values):
        return graph
    return graph.map_types(lambda of: _concrete(of, sizes))


def symbols_of(graph: TaskGraph) -> frozenset[str]:
    """The symbols in the sizes of all values of a graph. Cost: O(values)."""
    expressions = {size for value in graph.values for size in _expressions(value.type)}
    return frozenset(symbol for each in expressions for symbol in names_in(each))


def symbols_in(kind: Type | None) -> frozenset[str]:
    """The symbols in the sizes of one value."""
    return frozenset(symbol for each in _expressions(kind) for symbol in names_in(each))


def unnamed_symbols(inputs: Iterable[Input]) -> dict[str, frozenset[str]]:
    """The symbols in the sizes of each tensor that no number among the inputs is, by its name.

    A number such as "s0//2" does not say what s0 is.
    """
    inputs = list(inputs)
    named = {each.type.expression for each in inputs if isinstance(each.type, ScalarType)}
    tensors = [each for each in inputs if isinstance(each.type, TensorType)]
    found = {each.name: symbols_in(each.type) - named for each in tensors}
    return {name: symbols for name, symbols in found.items() if symbols}


def _expressions(kind: Type | None) -> Iterator[str]:
    match kind:
        case TupleType(items):
            for item in items:
                yield from _expressions(item)
        case ScalarType(expression):
            yield expression
        case TensorType(shape, stride):
            yield from (size for size in (*shape, *stride) if isinstance(size, str))


def names_in(expression: str) -> list[str]:
    """The symbols in an expression, without functions and constants."""
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
    """A size as a number if its symbols are known, else as it is."""
    try:
        return number(size, sizes)
    except UnsupportedError:
        return size


def number(size: Size, sizes: Sizes) -> int:
    """A size as a number.

    Raises:
        UnsupportedError: it has a symbol that is not in `sizes`, or an unknown function.
    """
    return size if isinstance(size, int) else _number(size, tuple(sorted(sizes.items())))


def numbers(sizes: Iterable[Size]) -> list[int]:
    """The sizes of a `concrete` graph as numbers.

    Raises:
        UnsupportedError: one of them is symbolic.
    """
    return [number(size, {}) for size in sizes]


@lru_cache(maxsize=4096)
def _number(expression: str, sizes: tuple[tuple[str, int], ...]) -> int:
    """The value of an expression. It is parsed, not run: it may be from an untrusted file."""
    try:
        return int(_evaluate(parsed(expression), dict(sizes)))
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise UnsupportedError(f"the size {expression} is not known: {error}") from error


def _evaluate(node: ast.expr, sizes: Sizes) -> Number:
    value = _evaluate_unbounded(node, sizes)
    if abs(value) > MAX_SIZE:
        raise ValueError("it is larger than any size")
    return value


def _evaluate_unbounded(node: ast.expr, sizes: Sizes) -> Number:
    match node:
        case ast.Constant(int() | float() as value):
            return value
        case ast.Name(name):
            if name not in sizes:
                depends_on_data = name.startswith("u")  # as PyTorch names such symbols
                when = " before the program runs: it depends on data" if depends_on_data else ""
                raise ValueError(f"{name} has no value{when}")
            return sizes[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, sizes)
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[_evaluate(argument, sizes) for argument in arguments])
    raise ValueError(f"unknown syntax: {ast.unparse(node)}")


def n_elements(of: TensorType) -> int:
    """The number of elements of a tensor.

    Raises:
        UnsupportedError: a size is symbolic.
    """
    return math.prod(numbers(of.shape))


def nbytes(of: TensorType) -> int:
    """The bytes of a tensor's elements.

    Raises:
        UnsupportedError: a size is symbolic.
    """
    return n_elements(of) * of.dtype.itemsize


def extent_nbytes(of: TensorType) -> int:
    """The bytes from the first element of a tensor to its last, gaps included.

    Raises:
        UnsupportedError: a size or stride is symbolic.
    """
    return extent(numbers(of.shape), numbers(of.stride)) * of.dtype.itemsize


def extent(shape: Iterable[int], stride: Iterable[int]) -> int:
    """The number of elements from the first of a tensor to its last, gaps included."""
    steps = list(zip(shape, stride, strict=True))
    return 1 + sum((n - 1) * step for n, step in steps) if all(n for n, _ in steps) else 0
