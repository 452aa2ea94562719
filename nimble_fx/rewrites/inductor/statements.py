"""Reads the function `call` of a module that Inductor wrote, as a list of statements.

An unknown statement is an error, so that it never skips one that a newer Inductor writes.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.locked_ast import syntax_tree
from nimble_fx.ir.types import Size
from nimble_fx.rewrites.inductor.kernel_signature import NewTensor, ViewLayout
from nimble_fx.rewrites.inductor.kernel_sizes import is_size

_ALLOCATIONS = {"empty_strided_cpu": "cpu", "empty_strided_cuda": "cuda"}
_NO_EFFECT = ("args.clear", "assert_alignment", "torch.cuda.set_device")
_ORIGIN = re.compile(r"\s*# \[Provenance debug handles\] (\S+)")


@dataclass(frozen=True)
class Name:
    """A reference to a value by its name."""

    name: str


@dataclass(frozen=True)
class Expression:
    """A number that is computed from symbolic sizes, as Python text, such as "4*s77"."""

    text: str


@dataclass(frozen=True)
class View:
    """A view of another tensor; its offset counts from where the other begins."""

    base: Name
    layout: ViewLayout


@dataclass(frozen=True)
class KernelCall:
    """A call to a kernel that Inductor compiled."""

    kernel: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class OperatorCall:
    """A call to a PyTorch operator: `path` is its name, such as ("aten", "addmm", "default").

    The overload is None if Inductor lets PyTorch resolve it.
    """

    path: tuple[str, str, str | None]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Expectation:
    """The sizes and strides that kernels assume of a tensor, and its dtype if stated."""

    of: Name
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Geometry:
    """All sizes of a tensor, or all strides: `method` is "size" or "stride"."""

    of: Name
    method: str


@dataclass(frozen=True)
class Item:
    """One of several results of an operator, one item of such a list, or one size or stride."""

    of: "Name | Item"
    index: int


@dataclass(frozen=True)
class Assignment:
    """`name = value`; the name is None if the value is not used.

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
        UnsupportedError: a statement has an unknown form.
    """
    functions = [node for node in ast.walk(syntax_tree(text)) if isinstance(node, ast.FunctionDef)]
    found = [node for node in functions if node.name == "call"]
    if len(found) != 1:
        raise UnsupportedError("Inductor wrote a module of several parts, which is not known here")
    return _Reader(text.split("\n")).read(found[0])


class _Reader:
    """Reads statements in order."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._inputs: tuple[str, ...] = ()
        self._statements: list[Assignment] = []
        self._returned: tuple[Any, ...] = ()

    def read(self, call: ast.FunctionDef) -> Calls:
        """Reads a whole function."""
        self._read(call.body)
        return Calls(self._inputs, tuple(self._statements), self._returned)

    def _read(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Delete() | ast.Pass():
                    pass
                case ast.With([ast.withitem(ast.Call(function))], inner) if (
                    ast.unparse(function) == "torch.cuda._DeviceGuard"
                ):
                    self._read(inner)
                case ast.Assign([ast.Tuple(names)], ast.Name("args")):
                    self._inputs = tuple(_name(each) for each in names)
                case ast.Assign(_, ast.Call(ast.Name("get_raw_stream"))):
                    pass  # an operator of a kernel asks for the stream itself
                case ast.Assign([ast.Name(name)], value):
                    self._add(name, value)
                case ast.Expr(ast.Call(function)) if ast.unparse(function) in _NO_EFFECT:
                    pass
                case ast.Expr(ast.Call(ast.Name("assert_size_stride_grouped"), groups)):
                    for name, size, stride in zip(*map(_value, groups[:3]), strict=True):
                        expected = Expectation(name, _sizes(size), _sizes(stride))
                        self._statements.append(Assignment(None, expected, None))
                case ast.Expr(ast.Call() as value):
                    self._add(None, value)
                case ast.Return(ast.Tuple(values)):
                    self._returned = tuple(_value(each) for each in values)
                case _:
                    raise _unknown(statement)

    def _add(self, name: str | None, value: ast.expr) -> None:
        """Adds a statement, with the origin in the comments above it."""
        above = value.lineno - 2
        while self._lines[above].strip().startswith("raw_stream"):
            above -= 1
        origin = _ORIGIN.fullmatch(self._lines[above])
        self._statements.append(Assignment(name, _value(value), origin and origin[1]))


def _value(node: ast.expr) -> Any:
    """An expression."""
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.BinOp() | ast.UnaryOp() if _has_complex_part(node):
            with suppress(ValueError):
                return ast.literal_eval(node)
        case ast.Name("inf" | "nan" as name):
            return float(name)
        case ast.Name(name):
            return Name(name)
        case ast.Tuple(items) | ast.List(items):
            return tuple(_value(item) for item in items)
        case ast.Attribute(ast.Name("torch"), name):
            return _of_torch(name, node)
        case ast.BinOp() | ast.UnaryOp() | ast.Call() if is_size(node):
            return Expression(ast.unparse(node))
        case ast.Subscript(ast.Name() | ast.Subscript() as of, ast.Constant(int() as index)):
            return Item(_value(of), index)
        case ast.Call(function, args, keywords):
            return _called(node, function, args, keywords)
    raise _unknown(node)


def _has_complex_part(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Constant) and type(n.value) is complex for n in ast.walk(node))


def _called(
    node: ast.expr, function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]
) -> Any:
    """Reads a call, according to the function's name."""
    kwargs = {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
    match function, args:
        case ast.Name(name), _ if name in _ALLOCATIONS:
            size, stride, dtype = map(_value, args)
            return NewTensor(_sizes(size), _sizes(stride), dtype, _ALLOCATIONS[name])
        case ast.Name("reinterpret_tensor"), [base, *layout]:
            size, stride, offset = map(_value, layout)
            parts = ViewLayout(_sizes(size), _sizes(stride), _size(offset))
            return View(Name(_name(base)), parts)
        case ast.Name("assert_size_stride"), [ast.Name(name), *layout]:
            size, stride = map(_value, layout[:2])
            return Expectation(Name(name), _sizes(size), _sizes(stride))
        case ast.Name("assert_tensor_metadata"), [ast.Name(name), *layout]:
            size, stride, dtype = map(_value, layout[:3])
            return Expectation(Name(name), _sizes(size), _sizes(stride), dtype)
        case ast.Attribute(ast.Name(name), "size" | "stride" as method), []:
            return Geometry(Name(name), method)
        case ast.Attribute(ast.Name(name), "copy_"), [source, _]:
            return OperatorCall(("aten", "copy_", None), (Name(name), _value(source)), {})
        case ast.Name("copy_if_misaligned"), [value]:
            return _value(value)  # which the operator of a kernel does
        case ast.Name("device"), _:
            index = [_value(kwargs["index"])] if "index" in kwargs else []
            return torch.device(_value(kwargs["type"]), *index)
        case ast.Name("float"), [value]:
            return float(_value(value))
        case ast.Name(name), _ if name.startswith("cpp_fused_"):
            return KernelCall(name, tuple(map(_value, args)))
        case ast.Attribute(ast.Name(name), "run"), _ if name.startswith("triton_"):
            return KernelCall(name, tuple(map(_value, args)))
    values, named = tuple(map(_value, args)), {key: _value(kwargs[key]) for key in kwargs}
    match ast.unparse(function).split("."):
        case ["extern_kernels" | "aten", operator]:
            return OperatorCall(("aten", operator, None), values, named)
        case ["torch", "ops", namespace, operator, overload]:
            return OperatorCall((namespace, operator, overload), values, named)
        case ["aten", operator, overload]:
            return OperatorCall(("aten", operator, overload), values, named)
    raise _unknown(node)


def _sizes(values: tuple[Any, ...]) -> tuple[Size, ...]:
    return tuple(map(_size, values))


def _size(value: Any) -> Size:
    """A number, a name or an expression as a size."""
    match value:
        case Name(text) | Expression(text):
            return text
        case int():
            return value
    raise UnsupportedError(f"Inductor wrote what is not known here, {value!r:.99}, as a size")


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
