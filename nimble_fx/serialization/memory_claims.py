"""Whether what the tasks in a file say that they do to memory is what their operators do."""

import operator
from collections.abc import Iterator

from nimble_fx.errors import FileError, ScheduleError
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task, TensorType, TupleType, Type, ref_names
from nimble_fx.serialization.operator_results import Returned
from nimble_fx.verify.parse.schemas import Effects, Storages, effects

Owners = tuple[Storages, ...]
"""The storages of each leaf of a type, depth first."""


class MemoryOf:
    """Which memory the values of a graph lie in. It takes values in order."""

    def __init__(self) -> None:
        self._holds: dict[str, Storages] = {}
        self._leaves: dict[str, tuple[Type | None, Owners]] = {}
        self._storages: set[str] = set()

    def given(self, value: Input) -> None:
        """An input or a constant: a tensor lies in memory of its own or of one before it.

        Raises:
            FileError: it holds something else.
        """
        if isinstance(value.type, TensorType):
            if len(value.holds) != 1 or not self._storages.union([value.name]) >= {*value.holds}:
                raise _lies(value, "holds", value.holds, "one storage, its own or an earlier one")
        elif value.holds or value.static:
            raise _lies(value, "holds", value.holds, "nothing: it is no tensor")
        self._storages.update(value.holds)
        self._holds[value.name] = value.holds

    def made(self, task: Task, returned: Returned | None) -> None:
        """A task: what it reads, writes, allocates and holds, and whether its order matters.

        Args:
            task: it.
            returned: what its operator returns; None where data decide.

        Raises:
            FileError: it does something else.
        """
        if task.target is operator.getitem:
            done, owners = Effects(), self._item(task)
        else:
            done = self._effects(task, returned)
            owners = tuple(self._owners(task, done, returned))
        fresh = dict.fromkeys(s for leaf in owners for s in leaf if s not in self._storages)
        held = {s for leaf in owners for s in leaf} | {*done.holds} - {*done.allocates}
        written = [s for s in done.writes if s not in done.allocates]
        for what, found in (
            ("reads", done.reads),
            ("writes", (*written, *fresh)),
            ("allocates", fresh),
            ("holds", held),
        ):
            said: Storages = getattr(task, what)
            if {*said} != {*found} or len({*said}) != len(said):
                raise _lies(task, what, said, f"({', '.join(found)})")
        if task.ordered != done.ordered:
            raise _lies(task, "is ordered:", task.ordered, str(done.ordered))
        self._storages.update(fresh)
        self._holds[task.name] = task.holds
        self._leaves[task.name] = task.type, owners

    def _effects(self, task: Task, returned: Returned | None) -> Effects:
        is_new = {owner >= 0 for owner in returned.owners} if returned else set()
        copies = is_new.pop() if len(is_new) == 1 else None
        try:
            return effects(task.target, task.name, task.args, dict(task.kwargs), self._held, copies)
        except ScheduleError as error:
            raise FileError(f"{task.name} ({task.target}): {error}") from error

    def _held(self, arg: Arg) -> Storages:
        return tuple(dict.fromkeys(s for name in ref_names(arg) for s in self._holds[name]))

    def _owners(self, task: Task, done: Effects, returned: Returned | None) -> Iterator[Storages]:
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
            lies_in = done.results[result if len(done.results) > 1 else 0]
            may_be_new = not set(lies_in).isdisjoint(done.allocates)
            given = operands[-1 - owners[i]] if owners[i] < 0 else ()
            if given and (may_be_new or set(given) <= set(lies_in)):
                yield given
            else:
                yield (names[owners[i]],) if may_be_new else lies_in

    def _item(self, task: Task) -> Owners:
        """The storages of one item of a task's results."""
        several, index = task.args
        kind, owners = self._leaves[several.name]
        items = kind.items if isinstance(kind, TupleType) else ()
        before = sum(1 for item in items[:index] for _ in _leaves(item))
        return owners[before : before + sum(1 for _ in _leaves(items[index]))]


def _leaves(kind: Type | None) -> Iterator[tuple[int, Type | None]]:
    """What is no tuple in a type, depth first, each with its operator's result that it is of."""
    if not isinstance(kind, TupleType):
        yield 0, kind
        return
    for i, item in enumerate(kind.items):
        yield from ((i, leaf) for _, leaf in _leaves(item))


def _in_order(arg: Arg) -> Iterator[str]:
    """The values in an argument, as often as they come."""
    if type(arg) is Ref:
        yield arg.name
    elif type(arg) in (tuple, list):
        for item in arg:
            yield from _in_order(item)


def _lies(value: Input | Task, what: str, said: object, found: str) -> FileError:
    shown = f"({', '.join(said)})" if isinstance(said, tuple) else said
    return FileError(f"{value.name} says that it {what} {shown}, but that is {found}")
