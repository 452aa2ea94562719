"""Checks the types that a file claims against those that its operators return."""

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from nimble_fx.errors import FileError, one_line
from nimble_fx.ir.arguments import map_leaves
from nimble_fx.ir.symbolic_sizes import MAX_SIZE, symbols_in, unnamed_symbols
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task
from nimble_fx.ir.types import ScalarType, Size, TensorType, TupleType, Type, dtype_name
from nimble_fx.serialization.enum_arguments import wrong_enums
from nimble_fx.serialization.operator_results import CallResult, OperatorResults
from nimble_fx.serialization.split_counts import n_parts
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of

_DATA_DEPENDENT = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_MAX_NBYTES = MAX_SIZE - 1
"""The most bytes of a tensor on any device."""
_MAY_EXPLODE = {operator.pow, operator.lshift, round}
"""Functions of sizes that may return more digits than fit in memory, even for usual arguments."""


class TypeClaims:
    """Checks the claimed types of a graph's values at one set of sizes.

    It takes values in order, each with its type at those sizes.
    """

    def __init__(self, assumed: frozenset[str]) -> None:
        """Starts without values.

        Args:
            assumed: the symbols whose value is not known, so that one is assumed.
        """
        self._assumed, self._defined = assumed, set[str]()
        self._results = OperatorResults()
        self._types: dict[str, Type | None] = {}
        self._numbers: dict[str, int | float | bool] = {}
        self._of_assumed_size: set[str] = set()

    def check_input(self, value: Input, kind: Type | None) -> None:
        """Checks an input or a constant, which may have any type but a tuple.

        Raises:
            FileError: it cannot have such a type.
        """
        if isinstance(kind, TupleType):
            raise FileError(f"{value.name} is an input of type {kind}: neither tensor nor number")
        self._add(value, kind)

    def begin(self, inputs: Sequence[Input]) -> None:
        """Collects the symbols that are inputs, before any value is checked.

        Raises:
            FileError: a symbol in a tensor's size or stride is not an input: replays depend on it.
        """
        self._defined |= {v.type.expression for v in inputs if isinstance(v.type, ScalarType)}
        unnamed = unnamed_symbols(inputs)
        for value in inputs:
            if value.name in unnamed:
                raise FileError(
                    f"{value.name} says that it is {_shown(value.type)}, but no input "
                    f"is {', '.join(sorted(unnamed[value.name]))}"
                )

    def check_task(self, task: Task, kind: Type | None) -> CallResult | None:
        """Checks a task; returns its result at these sizes, or None if that depends on data.

        Raises:
            FileError: its operator rejects its arguments, or returns something else than the file
                claims.
        """
        target = task.target
        if not _DATA_DEPENDENT.isdisjoint(getattr(target, "tags", ())):
            self._defined |= symbols_in(task.type)
        returned = None
        if target is operator.getitem:
            self._check_item(task, kind)
        elif isinstance(target, OpOverload):
            returned = self._called(target, task, kind)
        else:
            self._compute(task, kind)
        self._add(task, kind)
        return returned

    def _add(self, value: Input | Task, kind: Type | None) -> None:
        _check_sizes(value, kind)
        unknown = symbols_in(value.type) & self._assumed
        if not unknown <= self._defined:
            names = ", ".join(sorted(unknown - self._defined))
            raise FileError(f"{value.name} says that it is {value.type}, but {names} has no value")
        if unknown or symbols_in(kind):
            self._of_assumed_size.add(value.name)
        self._types[value.name] = kind
        if isinstance(kind, ScalarType):
            self._numbers.setdefault(value.name, _number(kind) or 0)

    def _has_assumed_size(self, task: Task) -> bool:
        known = self._assumed.isdisjoint(symbols_in(task.type))
        return not (known and self._of_assumed_size.isdisjoint(task.uses))

    def _called(self, target: OpOverload, task: Task, kind: Type | None) -> CallResult | None:
        args = self._with_types(task.args)
        kwargs = {k: self._with_types(arg) for k, arg in task.kwargs}
        if wrong := wrong_enums(target, args, kwargs):
            raise FileError(f"{task.name} cannot call {target}: {', '.join(wrong)}")
        n_claimed = len(kind.items) if isinstance(kind, TupleType) else 0
        n = n_parts(target, args, kwargs)
        if n > 2 * n_claimed + 2:
            raise FileError(f"{task.name} says that it is {n_claimed} tensors, but it is {n}")
        has_assumed_size = self._has_assumed_size(task)
        try:
            returned = self._results.of(target, args, kwargs)
        except Exception as error:  # an operator may raise any error about its arguments
            if has_assumed_size and _fits_schema(target, kind):
                return None
            raise FileError(f"{task.name} cannot call {target}: {one_line(error)}") from error
        if not _agree(returned.type, kind, in_sizes=not has_assumed_size):
            raise _wrong(task, kind, returned.type)
        return returned

    def _check_item(self, task: Task, kind: Type | None) -> None:
        several, index = task.args
        known = self._types.get(several.name) if isinstance(several, Ref) else None
        if not isinstance(known, TupleType) or not _is_item(index, known):
            raise FileError(f"{task.name} selects item {index!r}, which does not exist")
        if not _agree(known.items[index], kind, in_sizes=not self._has_assumed_size(task)):
            raise _wrong(task, kind, known.items[index])

    def _compute(self, task: Task, kind: Type | None) -> None:
        """Checks a function of sizes; one whose result may be huge is not called."""
        if not isinstance(kind, ScalarType):
            raise _wrong(task, kind, "a number")
        args = self._with_types(task.args)
        is_plain = task.target not in _MAY_EXPLODE and task.target.__module__ != "math"
        if task.kwargs or not is_plain or not all(isinstance(arg, int | float) for arg in args):
            return
        try:
            result = task.target(*args)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise FileError(f"{task.name} cannot call {task.target}: {one_line(error)}") from error
        if isinstance(result, int) and abs(result) > MAX_SIZE:
            raise FileError(f"{task.name} is a number larger than any size")
        if not self._has_assumed_size(task) and not _agree(ScalarType(str(result)), kind):
            raise _wrong(task, kind, result)
        self._numbers[task.name] = result

    def _with_types(self, arg: Arg) -> Arg:
        """An argument with types or numbers in place of Refs."""
        typed: Arg = map_leaves(self._with_type, arg)
        return typed

    def _with_type(self, leaf: Any) -> Any:
        if type(leaf) is not Ref:
            return leaf
        return self._numbers.get(leaf.name, self._types[leaf.name])


def _is_item(index: object, of: TupleType) -> bool:
    return type(index) is int and index in range(len(of.items))


def _fits_schema(op: OpOverload, kind: Type | None) -> bool:
    """Whether a type has as many items as an operator has results."""
    returns = schema_of(op).returns
    if not isinstance(kind, TupleType):
        return len(returns) <= 1
    is_list = [str(r.type) for r in returns] == ["List[Tensor]"]
    return is_list or len(kind.items) == len(returns)


def _wrong(task: Task, claimed: Type | None, found: object) -> FileError:
    shown = _shown(found) if isinstance(found, Type | None) else found
    return FileError(f"{task.name} says that it is {_shown(claimed)}, but it is {shown}")


def _agree(found: Type | None, claimed: Type | None, in_sizes: bool = True) -> bool:
    """Whether a type equals a claimed one; strides of dimensions of size 1 do not count."""
    match found, claimed:
        case TensorType(), TensorType():
            if _kind(found) != _kind(claimed):
                return False
            same = found.shape == claimed.shape and _steps(found) == _steps(claimed)
            return not in_sizes or same
        case TupleType(items), TupleType(others):
            pairs = zip(items, others, strict=False)
            return len(items) == len(others) and all(_agree(a, b, in_sizes) for a, b in pairs)
        case ScalarType(), ScalarType():
            one, other = _number(found), _number(claimed)
            return not in_sizes or one is None or other is None or one == other
    return found is None and claimed is None


def _kind(of: TensorType) -> tuple[object, ...]:
    return of.dtype, of.device, len(of.shape), of.is_conj, of.is_neg


def _steps(kind: TensorType) -> list[Size]:
    if 0 in kind.shape:
        return []
    return [step for n, step in zip(kind.shape, kind.stride, strict=True) if n != 1]


def _number(kind: ScalarType) -> int | None:
    """The value of an integer that may be a size; None for other expressions."""
    text = kind.expression
    is_number = text.removeprefix("-").isdecimal() and len(text) <= len(str(-MAX_SIZE))
    return int(text) if is_number else None


def _shown(kind: Type | None) -> str:
    """A type as text, with strides and device."""
    match kind:
        case TensorType(shape, stride, dtype, device):
            sizes = f"[{', '.join(map(str, shape))}], stride [{', '.join(map(str, stride))}]"
            bits = " conjugated" * kind.is_conj + " negated" * kind.is_neg
            return f"{dtype_name(dtype)}{sizes}{bits} on {device}"
        case TupleType(items):
            return f"({', '.join(map(_shown, items))})"
    return str(kind)


def _check_sizes(value: Input | Task, kind: Type | None) -> None:
    """Checks that no tensor has more than `_MAX_NBYTES`."""
    if isinstance(kind, TupleType):
        for item in kind.items:
            _check_sizes(value, item)
    elif isinstance(kind, TensorType):
        steps = zip(kind.shape, kind.stride, strict=True)
        last = sum((n - 1) * step for n, step in steps if type(n) is type(step) is int and n)
        counted = [n for n in kind.shape if type(n) is int]
        if max(last + 1, prod(counted)) * kind.dtype.itemsize > _MAX_NBYTES:
            raise FileError(f"{value.name} says that it is {_shown(kind)}: no tensor is as large")
