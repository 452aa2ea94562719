"""The functions that a task may call, and their names in program files.

A task calls an operator that PyTorch's dispatcher knows, or one of the few functions that compute
sizes. Names are looked up among these and nowhere else, so no file can name `operator.attrgetter`
or `torch.import_ir_module`.
"""

import builtins
import math
import operator
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from nimble_fx.ir.python_bindings import fastest_binding
from nimble_fx.torch_internals.names import OpOverload, operator_names

_ARITHMETIC = {
    *("abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "index", "inv", "invert"),
    *("le", "lshift", "lt", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift"),
    *("sub", "truediv", "truth", "xor"),
}


def is_importable(target: object) -> bool:
    """Whether it is a function of sizes from a module that emitted modules import.

    These are the arithmetic of `operator`, all of `math`, Python's `round`, and torch's `sym_`
    functions, some of which are private: `torch.sym_sqrt` is named `_sym_sqrt`.
    """
    if target is round:
        return True
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if module == "_operator":
        return name in _ARITHMETIC and getattr(operator, name) is target
    if module == "math":
        return isinstance(target, BuiltinFunctionType) and getattr(math, name, None) is target
    if module == "torch" and isinstance(target, FunctionType):
        return name.startswith(("sym_", "_sym_")) and getattr(torch, name, None) is target
    return False


def runtime_function(target: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a loaded module calls for a task's target."""
    if isinstance(target, OpOverload) and target.namespace == "aten":
        return fastest_binding(target)
    return target


def serialized_name(target: Callable[..., Any]) -> str | None:
    """The name in program files, such as "aten::add.Tensor"; None if no task may call it."""
    if isinstance(target, OpOverload):
        return str(target.name())  # type: ignore[no-untyped-call]
    if is_importable(target):
        return f"{target.__module__.removeprefix('_')}.{target.__name__}"
    return None


def operators_by_name(names: Iterable[str]) -> dict[str, OpOverload]:
    """The operators by their names, without names unknown to the dispatcher. Cost: milliseconds."""
    known = set(operator_names())  # torch.ops would create what it lacks
    found = {name: _overload(name) for name in names if name in known}
    return {name: op for name, op in found.items() if op is not None}


def function_by_name(name: str) -> Callable[..., Any] | None:
    """The function of sizes with that name; None if there is none."""
    prefix, _, function = name.partition(".")
    modules = {"builtins": builtins, "math": math, "operator": operator, "torch": torch}
    module = modules.get(prefix)
    found = vars(module).get(function) if module is not None else None
    return found if is_importable(found) else None


def _overload(name: str) -> OpOverload | None:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operators = getattr(getattr(torch.ops, namespace), packet, None)
    found = getattr(operators, overload or "default", None)
    return found if isinstance(found, OpOverload) else None
