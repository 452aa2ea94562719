"""Whether the types in a file are those that its operators return."""

import operator
from collections.abc import Sequence
from math import prod

import torch

from nimble_fx.errors import FileError, one_line
from nimble_fx.ir.symbolic_sizes import symbols_in
from nimble_fx.ir.task_graph import (
    Arg,
    Input,
    Ref,
    ScalarType,
    Size,
    Task,
    TensorType,
    TupleType,
    Type,
    dtype_name,
)
from nimble_fx.serialization.operator_results import Results, Returned
from nimble_fx.serialization.type_parts import n_parts
from nimble_fx.torch_internals.names import OpOverload

_DATA_DECIDE = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_LARGEST = 2**63 - 1
"""No tensor has more bytes, wherever it is."""
_MAY_GROW = {operator.pow, operator.lshift}
"""Functions of sizes whose results may have more digits than memory holds."""


class TypesOf:
    """The types of a graph's values at one set of sizes, as its operators make them of each other.

    It takes values in order, each with its type at those sizes.
    """

    def __init__(self, undecided: frozenset[str]) -> None:
        """Knows no value yet.

        Args:
            undecided: the symbols whose size is not known; any is taken for it.
        """
        self._undecided, self._introduced = undecided, set[str]()
        self._results = Results()
        self._types: dict[str, Type | None] = {}
        self._numbers: dict[str, int | float | bool] = {}
        self._unsure: set[str] = set()

    def given(self, value: Input, kind: Type | None) -> None:
        """An input or a constant: any type that a tensor, a number or nothing can have.

        Raises:
            FileError: it can have no such type.
        """
        if isinstance(kind, TupleType):
            raise FileError(f"{value.name} is an input of type {kind}: neither tensor nor number")
        self._add(value, kind)

    def begin(self, inputs: Sequence[Input]) -> None:
        """Learns which symbols are inputs, before any value is taken.

        Raises:
            FileError: a symbol in a tensor's size or stride is none: replays go by these numbers.
        """
        told = {v.type.expression for v in inputs if isinstance(v.type, ScalarType)}
        self._introduced |= told
        for value in inputs:
            untold = symbols_in(value.type) - told
            if isinstance(value.type, TensorType) and untold:
                raise FileError(
                    f"{value.name} says that it is {_shown(value.type)}, but no input "
                    f"is {', '.join(sorted(untold))}"
                )

    def made(self, task: Task, kind: Type | None) -> Returned | None:
        """What a task returns at these sizes; None where data decide.

        Raises:
            FileError: its operator does not take its arguments, or returns something else than the
                file says.
        """
        target = task.target
        if not _DATA_DECIDE.isdisjoint(getattr(target, "tags", ())):
            self._introduced |= symbols_in(task.type)
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
        unknown = symbols_in(value.type) & self._undecided
        if not unknown <= self._introduced:
            names = ", ".join(sorted(unknown - self._introduced))
            raise FileError(
                f"{value.name} says that it is {value.type}; nothing says what {names} is"
            )
        if unknown or symbols_in(kind):
            self._unsure.add(value.name)
        self._types[value.name] = kind
        if isinstance(kind, ScalarType):
            self._numbers.setdefault(value.name, _number(kind) or 0)

    def _is_unsure(self, task: Task) -> bool:
        known = self._undecided.isdisjoint(symbols_in(task.type))
        return not (known and self._unsure.isdisjoint(task.uses))

    def _called(self, target: OpOverload, task: Task, kind: Type | None) -> Returned | None:
        args, kwargs = self._filled(task.args), {k: self._filled(arg) for k, arg in task.kwargs}
        said = len(kind.items) if isinstance(kind, TupleType) else 0
        n = n_parts(target, args, kwargs)
        if n > 2 * said + 2:
            raise FileError(f"{task.name} says that it is {said} tensors, but it is {n}")
        is_unsure = self._is_unsure(task)
        try:
            returned = self._results.of(target, args, kwargs)
        except Exception as error:  # whatever an operator has to say of its arguments
            if is_unsure:
                return None
            raise FileError(f"{task.name} cannot call {target}: {one_line(error)}") from error
        if not _agree(returned.type, kind, in_sizes=not is_unsure):
            raise _lies(task, kind, returned.type)
        return returned

    def _check_item(self, task: Task, kind: Type | None) -> None:
        several, index = task.args
        known = self._types.get(several.name) if isinstance(several, Ref) else None
        if not isinstance(known, TupleType) or index not in range(len(known.items)):
            raise FileError(f"{task.name} takes item {index!r} of what has no such item")
        if not _agree(known.items[index], kind, in_sizes=not self._is_unsure(task)):
            raise _lies(task, kind, known.items[index])

    def _compute(self, task: Task, kind: Type | None) -> None:
        """A function of sizes; one whose result may be too long to write is not called."""
        if not isinstance(kind, ScalarType):
            raise _lies(task, kind, "a number")
        args = self._filled(task.args)
        is_plain = task.target not in _MAY_GROW and task.target.__module__ != "math"
        if task.kwargs or not is_plain or not all(isinstance(arg, int | float) for arg in args):
            return
        try:
            result = task.target(*args)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise FileError(f"{task.name} cannot call {task.target}: {one_line(error)}") from error
        if not self._is_unsure(task) and not _agree(ScalarType(str(result)), kind):
            raise _lies(task, kind, result)
        self._numbers[task.name] = result

    def _filled(self, arg: Arg) -> Arg:
        """An argument with types for tensors, and numbers."""
        if type(arg) is Ref:
            return self._numbers.get(arg.name, self._types[arg.name])
        if type(arg) in (tuple, list):
            return tuple(map(self._filled, arg))
        if type(arg) is slice:
            return slice(*map(self._filled, (arg.start, arg.stop, arg.step)))
        return arg


def _lies(task: Task, said: Type | None, found: object) -> FileError:
    shown = _shown(found) if isinstance(found, Type | None) else found
    return FileError(f"{task.name} says that it is {_shown(said)}, but it is {shown}")


def _agree(found: Type | None, said: Type | None, in_sizes: bool = True) -> bool:
    """Whether a type is what a file says; the stride of one element means nothing."""
    match found, said:
        case TensorType(), TensorType():
            alike = (found.dtype, found.device, len(found.shape))
            if alike != (said.dtype, said.device, len(said.shape)):
                return False
            return not in_sizes or (found.shape == said.shape and _steps(found) == _steps(said))
        case TupleType(items), TupleType(others):
            pairs = zip(items, others, strict=False)
            return len(items) == len(others) and all(_agree(a, b, in_sizes) for a, b in pairs)
        case ScalarType(), ScalarType():
            one, other = _number(found), _number(said)
            return not in_sizes or one is None or other is None or one == other
    return found is None and said is None


def _steps(kind: TensorType) -> list[Size]:
    if 0 in kind.shape:
        return []
    return [step for n, step in zip(kind.shape, kind.stride, strict=True) if n != 1]


def _number(kind: ScalarType) -> int | None:
    """An integer's value; of others too little is known here."""
    text = kind.expression
    return int(text) if text.removeprefix("-").isdecimal() else None


def _shown(kind: Type | None) -> str:
    """A type with its strides and where it is."""
    match kind:
        case TensorType(shape, stride, dtype, device):
            sizes = f"[{', '.join(map(str, shape))}], stride [{', '.join(map(str, stride))}]"
            return f"{dtype_name(dtype)}{sizes} on {device}"
        case TupleType(items):
            return f"({', '.join(map(_shown, items))})"
    return str(kind)


def _check_sizes(value: Input | Task, kind: Type | None) -> None:
    """No tensor has more bytes than can be counted, wherever it is."""
    if isinstance(kind, TupleType):
        for item in kind.items:
            _check_sizes(value, item)
    elif isinstance(kind, TensorType):
        steps = zip(kind.shape, kind.stride, strict=True)
        last = sum((n - 1) * step for n, step in steps if type(n) is type(step) is int and n)
        counted = [n for n in kind.shape if type(n) is int]
        if max(last + 1, prod(counted)) * kind.dtype.itemsize > _LARGEST:
            raise FileError(f"{value.name} says that it is {_shown(kind)}: no tensor is as large")
