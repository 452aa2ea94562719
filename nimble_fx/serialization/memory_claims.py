"""Checks the memory effects that the tasks in a file claim against their operators."""

import operator
from collections.abc import Iterator
from itertools import islice

from nimble_fx.errors import FileError, ScheduleError
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task, ref_names
from nimble_fx.ir.types import TensorType, TupleType, Type
from nimble_fx.serialization.operator_results import CallResult
from nimble_fx.verify.parse.schemas import CallEffects, Storages, effects

Owners = tuple[Storages, ...]
"""The storages of each leaf of a type, depth first."""


class MemoryClaims:
    """Checks the claimed storages of the values of a graph, in order."""

    def __init__(self) -> None:
        self._holds: dict[str, Storages] = {}
        self._items: dict[str, tuple[Owners, ...]] = {}
        self._storages: set[str] = set()

    def check_input(self, value: Input) -> None:
        """Checks an input or a constant: a tensor has its own storage or an earlier one's.

        Raises:
            FileError: it claims other storages.
        """
        if isinstance(value.type, TensorType):
            if len(value.holds) != 1 or not self._storages.union([value.name]) >= {*value.holds}:
                raise _wrong(value, "holds", value.holds, "one storage, its own or an earlier one")
        elif value.holds or value.static:
            raise _wrong(value, "holds", value.holds, "nothing: it is not a tensor")
        self._storages.update(value.holds)
        self._holds[value.name] = value.holds

    def check_task(self, task: Task, returned: CallResult | None) -> None:
        """Checks what a task reads, writes, allocates and holds, and whether its order matters.

        Args:
            task: the task.
            returned: the result of its operator; None if it depends on data.

        Raises:
            FileError: it claims something else.
        """
        if task.target is operator.getitem:
            several, index = task.args
            found, owners = CallEffects(), self._items[several.name][index]
        else:
            found = self._effects(task, returned)
            owners = tuple(self._owners(task, found, returned))
        fresh = dict.fromkeys(s for leaf in owners for s in leaf if s not in self._storages)
        held = {s for leaf in owners for s in leaf} | {*found.holds} - {*found.allocates}
        written = [s for s in found.writes if s not in found.allocates]
        for what, expected in (
            ("reads", found.reads),
            ("writes", (*written, *fresh)),
            ("allocates", fresh),
            ("holds", held),
        ):
            claimed: Storages = getattr(task, what)
            if {*claimed} != {*expected} or len({*claimed}) != len(claimed):
                raise _wrong(task, what, claimed, f"({', '.join(expected)})")
        if task.ordered != found.ordered:
            raise _wrong(task, "is ordered:", task.ordered, str(found.ordered))
        self._storages.update(fresh)
        self._holds[task.name] = task.holds
        self._items[task.name] = _by_item(task.type, owners)

    def _effects(self, task: Task, returned: CallResult | None) -> CallEffects:
        is_new = {owner >= 0 for owner in returned.owners} if returned else set()
        copies = is_new.pop() if len(is_new) == 1 else None
        try:
            return effects(task.target, task.name, task.args, dict(task.kwargs), self._held, copies)
        except ScheduleError as error:
            raise FileError(f"{task.name} ({task.target}): {error}") from error

    def _held(self, arg: Arg) -> Storages:
        return tuple(dict.fromkeys(s for name in ref_names(arg) for s in self._holds[name]))

    def _owners(
        self, task: Task, found: CallEffects, returned: CallResult | None
    ) -> Iterator[Storages]:
        """The storages of each leaf of a task's type; new ones are named as a trace names them."""
        leaves = list(_leaves(task.type))
        tensors = [i for i, (_, kind) in enumerate(leaves) if isinstance(kind, TensorType)]
        names = [task.name if len(tensors) == 1 else f"{task.name}.{i}" for i in tensors]
        operands = [s for name in _in_order((task.args, task.kwargs)) if (s := self._holds[name])]
        known = returned.owners if returned else range(len(tensors))
        owners = dict(zip(tensors, known, strict=True))
        for i, (result, _) in enumerate(leaves):
            if i not in owners:
                yield ()
                continue
            aliases = found.results[result if len(found.results) > 1 else 0]
            may_be_new = not set(aliases).isdisjoint(found.allocates)
            operand = operands[-1 - owners[i]] if owners[i] < 0 else ()
            if operand and (may_be_new or set(operand) <= set(aliases)):
                yield operand
            else:
                yield (names[owners[i]],) if may_be_new else aliases


def _by_item(kind: Type | None, owners: Owners) -> tuple[Owners, ...]:
    """The storages of each item of a task's results."""
    items, rest = kind.items if isinstance(kind, TupleType) else (), iter(owners)
    return tuple(tuple(islice(rest, sum(1 for _ in _leaves(item)))) for item in items)


def _leaves(kind: Type | None) -> Iterator[tuple[int, Type | None]]:
    """The leaves of a type, depth first, each with the position of the operator's result."""
    if not isinstance(kind, TupleType):
        yield 0, kind
        return
    for i, item in enumerate(kind.items):
        yield from ((i, leaf) for _, leaf in _leaves(item))


def _in_order(arg: Arg) -> Iterator[str]:
    """The names of the values in an argument, with repetitions."""
    if type(arg) is Ref:
        yield arg.name
    elif type(arg) in (tuple, list):
        for item in arg:
            yield from _in_order(item)


def _wrong(value: Input | Task, what: str, claimed: object, expected: str) -> FileError:
    shown = f"({', '.join(claimed)})" if isinstance(claimed, tuple) else claimed
    return FileError(f"{value.name} says that it {what} {shown}, but that is {expected}")
