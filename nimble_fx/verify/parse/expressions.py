"""Parses the expressions of emitted modules: functions and their arguments."""

import ast
import builtins
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Arg, Ref
from nimble_fx.torch_internals.names import OpOverload, OpOverloadPacket, has_kernel

Values = Mapping[str, Ref]
"""The values that an expression may name."""

_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_MODULES = {"builtins": builtins, "math": math, "operator": operator}


def callee(node: ast.expr, modules: Collection[str]) -> Callable[..., Any]:
    """The function that `aten.add.Tensor`, `math.ceil` or `torch.sym_max` names.

    PyTorch's bindings of operators, such as `torch.relu`, are refused: some have other defaults.

    Args:
        node: its expression.
        modules: the modules of Python that the text imports.

    Raises:
        ScheduleError: there is no such operator or function, or its module is not imported.
    """
    name = dotted_name(node)
    module = name.partition(".")[0]
    if module in _MODULES and module not in modules:
        raise ScheduleError(f"{name} needs the line: import {module}")
    return _resolve(name)


def argument(node: ast.expr, values: Values) -> Arg:
    """An argument: a value, a literal, or lists of arguments.

    Args:
        node: its expression.
        values: the values by name.

    Raises:
        ScheduleError: it is something else.
    """
    # the most frequent kinds come first, and isinstance is faster than patterns
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return tuple([argument(item, values) for item in node.elts])
    match node:
        case ast.Attribute(ast.Name("p"), name) if f"p.{name}" in values:
            return values[f"p.{name}"]
        case ast.Attribute(ast.Name("torch"), name):
            constant = getattr(torch, name, None)
            if isinstance(constant, _CONSTANTS):
                return constant
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            return -number
        case ast.Call(function, items, []):
            args = [argument(item, values) for item in items]
            return _constructed(dotted_name(function), args)
    raise ScheduleError(f"{ast.unparse(node)} is neither a value nor a literal")


def dotted_name(node: ast.expr) -> str:
    """The dotted name of a function: "aten.add.Tensor"."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ScheduleError(f"{ast.unparse(node)} is not the name of an operator")
    return ".".join([node.id, *reversed(names)])


def _constructed(function: str, args: list[Arg]) -> Arg:
    """An argument without a literal: a slice, a device, an infinity or nan, a complex number."""
    match function, args:
        case "slice", [start, stop, step]:
            return slice(start, stop, step)
        case "complex", [int() | float() as real, int() | float() as imaginary]:
            return complex(real, imaginary)
        case "torch.device", [str(name)]:
            try:
                return torch.device(name)
            except RuntimeError as error:
                raise ScheduleError(f"there is no device {name!r}") from error
        case "float", ["inf" | "-inf" | "nan" as name]:
            return float(name)
    raise ScheduleError(f"{function} does not construct an argument")


def _resolve(name: str) -> Callable[..., Any]:
    match name.split("."):
        case ["torch", "ops", namespace, packet, overload] if namespace != "aten":
            return _overload(namespace, packet, overload)  # the user may define it anew
    return _resolve_pytorchs(name)


@lru_cache(maxsize=4096)
def _resolve_pytorchs(name: str) -> Callable[..., Any]:
    match name.split("."):
        case ["aten", packet, overload] | ["torch", "ops", "aten", packet, overload]:
            return _overload("aten", packet, overload)
        case ["torch", function]:
            return _function_of_sizes(function)
        case ["builtins", "round"]:
            return round
        case ["math" | "operator" as module, function]:
            found = getattr(_MODULES[module], function, None)
            if callable(found):
                return found  # type: ignore[no-any-return]
    raise ScheduleError(f"there is no operator {name}")


def _overload(namespace: str, packet: str, overload: str) -> OpOverload:
    found = None
    if overload in _overloads(namespace, packet):
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(found, OpOverload) or not _is_dispatched(found):
        raise ScheduleError(f"there is no operator {namespace}.{packet}.{overload}")
    return found


def _is_dispatched(op: OpOverload) -> bool:
    """Whether PyTorch's dispatcher has the operator; some are TorchScript's alone."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return bool(has_kernel(name))


def _overloads(namespace: str, packet: str) -> Sequence[str]:
    """The names of an operator's overloads; empty if there is no such operator."""
    operators = getattr(getattr(torch.ops, namespace), packet, None)
    if not isinstance(operators, OpOverloadPacket):
        return ()
    names: list[str] = operators.overloads()  # type: ignore[no-untyped-call]
    return names


def _function_of_sizes(name: str) -> Callable[..., Any]:
    function = getattr(torch, name, None)
    if isinstance(function, FunctionType) and name.startswith(("sym_", "_sym_")):
        return function
    similar = [f"aten.{name}.{each}" for each in _overloads("aten", name) if "out" not in each]
    hint = f"; an operator is called by its overload: {', '.join(similar)}" if similar else ""
    raise ScheduleError(f"there is no operator torch.{name}{hint}")
