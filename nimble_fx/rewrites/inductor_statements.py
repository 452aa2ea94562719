"""Reads the function `call` of a module that Inductor wrote, as a list of statements.

Whatever it does not know is an error, so that a statement of a newer Inductor is never skipped.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nimble_fx.errors import UnsupportedError

_ALLOCATIONS = {"empty_strided_cpu": "cpu", "empty_strided_cuda": "cuda"}
_NO_EFFECT = ("assert_size_stride", "assert_alignment")


@dataclass(frozen=True)
class Name:
    """A value by its name."""

    name: str


@dataclass(frozen=True)
class View:
    """A tensor on another's memory; the offset, in elements, is from where the other begins."""

    base: Name
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Allocation:
    """New memory, with nothing in it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel that Inductor compiled."""

    kernel: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class OperatorCall:
    """A call of PyTorch's operator: `path` is its name, such as ("aten", "addmm", "default").

    The overload is None where Inductor leaves it to PyTorch.
    """

    path: tuple[str, str, str | None]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One of the results of an operator."""

    of: Name
    index: int


@dataclass(frozen=True)
class Assignment:
    """`name = value`; the name is None where the value is not used.

    Attributes:
        origin: the name of the call in the comment above it, such as "cpp_fused_relu_0:1".
    """

    name: str | None
    value: Any
    origin: str | None


@dataclass(frozen=True)
class Calls:
    """The function `call`.

    Attributes:
        inputs: the names of its inputs, in order.
        statements: what it does, in order.
        returned: what it returns.
    """

    inputs: tuple[str, ...]
    statements: tuple[Assignment, ...]
    returned: tuple[Any, ...]


def read_calls(text: str) -> Calls:
    """The statements of `call`.

    Raises:
        UnsupportedError: a statement is none of those that are known.
    """
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    (call,) = (node for node in functions if node.name == "call")
    return _Reader(text.split("\n")).read(call)


class _Reader:
    """Reads statements in order."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._inputs: tuple[str, ...] = ()
        self._statements: list[Assignment] = []
        self._returned: tuple[Any, ...] = ()

    def read(self, call: ast.FunctionDef) -> Calls:
        """All of a function."""
        self._read(call.body)
        return Calls(self._inputs, tuple(self._statements), self._returned)

    def _read(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Delete() | ast.Pass():
                    pass
                case ast.Assign([ast.Tuple(names)], ast.Name("args")):
                    self._inputs = tuple(_name(each) for each in names)
                case ast.Assign([ast.Name(name)], value):
                    self._add(name, value)
                case ast.Expr(ast.Call(ast.Name(name))) if name in _NO_EFFECT:
                    pass
                case ast.Expr(ast.Call(ast.Attribute(ast.Name("args"), "clear"))):
                    pass
                case ast.Expr(ast.Call() as value):
                    self._add(None, value)
                case ast.Return(ast.Tuple(values)):
                    self._returned = tuple(_value(each) for each in values)
                case _:
                    raise _unknown(statement)

    def _add(self, name: str | None, value: ast.expr) -> None:
        """Adds a statement, with the origin in the last comment above it."""
        comment = re.fullmatch(
            r"\s*# \[Provenance debug handles\] (\S+)", self._lines[value.lineno - 2]
        )
        self._statements.append(Assignment(name, _value(value), comment and comment[1]))


def _value(node: ast.expr) -> Any:
    """An expression."""
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value)):
            return -value  # type: ignore[operator]
        case ast.Name(name):
            return Name(name)
        case ast.Tuple(items) | ast.List(items):
            return tuple(_value(item) for item in items)
        case ast.Attribute(ast.Name("torch"), name):
            return _of_torch(name, node)
        case ast.Subscript(ast.Name(name), ast.Constant(int() as index)):
            return Item(Name(name), index)
        case ast.Call(function, args, keywords):
            return _called(node, function, args, keywords)
    raise _unknown(node)


def _called(
    node: ast.expr, function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]
) -> Any:
    """A call, by the function's name."""
    values = tuple(map(_value, args))
    named = {keyword.arg: _value(keyword.value) for keyword in keywords if keyword.arg is not None}
    match function:
        case ast.Name(name) if name in _ALLOCATIONS:
            size, stride, dtype = values
            return Allocation(size, stride, dtype, _ALLOCATIONS[name])
        case ast.Name("reinterpret_tensor"):
            return View(*values)
        case ast.Name("device"):
            return torch.device(named["type"], *([named["index"]] if "index" in named else []))
        case ast.Name("float"):
            return float(*values)
        case ast.Name(name) if name.startswith("cpp_fused_"):
            return KernelCall(name, values)
    path = tuple(ast.unparse(function).split("."))
    match path:
        case ("extern_kernels", operator):
            return OperatorCall(("aten", operator, None), values, named)
        case ("torch", "ops", namespace, operator, overload):
            return OperatorCall((namespace, operator, overload), values, named)
    raise _unknown(node)


def _of_torch(name: str, node: ast.expr) -> Any:
    """A dtype, layout or memory format."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise _unknown(node)
    return found


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise _unknown(node)
    return node.id


def _unknown(node: ast.AST) -> UnsupportedError:
    return UnsupportedError(f"Inductor wrote what is not known here: {ast.unparse(node):.200}")


def kernel_parameters(text: str) -> dict[str, tuple[str, ...]]:
    """The C++ types of the parameters of each kernel of a text, such as "const float*"."""
    found = {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(
                [ast.Name(name)],
                ast.Call(ast.Attribute(ast.Name("async_compile"), "cpp_pybinding"), [types, *_]),
            ):
                found[name] = tuple(_strings(types))
    return found


def kernel_sources(text: str) -> dict[str, str]:
    """The C++ text of each kernel of a text."""
    found = {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(
                [ast.Name(name)],
                ast.Call(
                    ast.Attribute(ast.Name("async_compile"), "cpp_pybinding"),
                    [_, ast.Constant(str() as source), *_],
                ),
            ):
                found[name] = source
    return found


def _strings(node: ast.expr) -> Iterator[str]:
    for item in ast.literal_eval(node):
        yield str(item)
