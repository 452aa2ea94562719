"""What a task may call, and the name that stands for it in a file.

That is an operator that PyTorch's dispatcher knows, or one of the few functions that compute
sizes. A name is looked up among these and nowhere else: `operator.attrgetter` or
`torch.import_ir_module` cannot be had by it.
"""

import math
import operator
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from nimble_fx.ir.python_bindings import fastest
from nimble_fx.torch_internals.names import OpOverload, operator_names

_ARITHMETIC = {
    *("abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "index", "inv", "invert"),
    *("le", "lshift", "lt", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift"),
    *("sub", "truediv", "truth", "xor"),
}


def is_importable(target: object) -> bool:
    """Whether it is a function of sizes, of a module that emitted modules import.

    These are arithmetic of `operator`, all of `math`, and torch's `sym_` functions.
    """
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if module == "_operator":
        return name in _ARITHMETIC and getattr(operator, name) is target
    if module == "math":
        return isinstance(target, BuiltinFunctionType) and getattr(math, name, None) is target
    if module == "torch" and isinstance(target, FunctionType):
        return name.startswith(("sym_", "_sym_")) and getattr(torch, name, None) is target
    return False


def called(target: Callable[..., Any]) -> Callable[..., Any]:
    """What an emitted module calls for a target, once it is loaded."""
    return fastest(target) if isinstance(target, OpOverload) else target


def name_in_file(target: Callable[..., Any]) -> str | None:
    """Its name: "aten::add.Tensor", "operator.mul"; None if it is nothing that a task may call."""
    if isinstance(target, OpOverload):
        return str(target.name())  # type: ignore[no-untyped-call]
    if is_importable(target):
        return f"{target.__module__.removeprefix('_')}.{target.__name__}"
    return None


def operators_by_name(names: Iterable[str]) -> dict[str, OpOverload]:
    """The operators of those names that the dispatcher knows. Cost: milliseconds, once."""
    known = set(operator_names())  # so no attribute of torch.ops is made
    found = {name: _overload(name) for name in names if name in known}
    return {name: op for name, op in found.items() if op is not None}


def function_by_name(name: str) -> Callable[..., Any] | None:
    """The function of sizes of a name; None if there is none."""
    module, _, function = name.partition(".")
    home = {"operator": operator, "math": math, "torch": torch}.get(module)
    found = vars(home).get(function) if home is not None else None
    return found if is_importable(found) else None


def _overload(name: str) -> OpOverload | None:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operators = getattr(getattr(torch.ops, namespace), packet, None)
    found = getattr(operators, overload or "default", None)
    return found if isinstance(found, OpOverload) else None
