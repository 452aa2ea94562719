"""The storages of the values of a text, tracked line by line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task, TaskGraph, ref_names
from nimble_fx.ir.types import TupleType
from nimble_fx.verify.parse.schemas import CallEffects, Storages, effects
from nimble_fx.verify.parse.tables import ModuleTables


class ValueStorages:
    """The storages of the values that a text has defined so far.

    Attributes:
        holds: the storages of each value, each named after its first value.
    """

    def __init__(self, tables: ModuleTables, expected: TaskGraph | None) -> None:
        self.holds: dict[str, Storages] = tables.storages
        self._results: dict[str, tuple[Storages, ...]] = {}
        self._n_results: dict[str, int] = {}
        self._lists: dict[str, Mapping[int, _List]] = {}
        self._growing: dict[str, _List] = {}
        self._operators: Iterator[Task] = iter(())
        if expected is not None:
            self._operators = (task for task in expected.tasks if not task.is_item)

    def call(self, draft: dict[str, Any]) -> None:
        """Adds the memory effects of a call to the draft of its task."""
        name, target = draft["name"], draft["target"]
        expected = next(self._operators, None)
        is_known = expected is not None and expected.target == target
        copies = bool(expected and expected.allocates) if is_known else None
        kwargs = dict(draft["kwargs"])
        done = effects(target, name, draft["args"], kwargs, self._storages, copies)
        draft.update(reads=done.reads, writes=done.writes, allocates=done.allocates)
        draft["holds"] = self.holds[name] = done.holds
        if is_known and expected is not None and isinstance(expected.type, TupleType):
            self._n_results[name] = len(expected.type.items)
        self._remember_results(name, done, draft)

    def check_unpacked(self, name: str, n_names: int) -> None:
        """Checks that a call has as many results as there are names for them, if that is known.

        Raises:
            ScheduleError: it has more or fewer.
        """
        known = len(self._results[name]) if name in self._results else None
        n_results = self._n_results.get(name, known)
        if n_results not in (None, n_names):
            raise ScheduleError(f"the call has {n_results} results, for {n_names} names")

    def item(self, draft: dict[str, Any]) -> None:
        """Adds the storages of an item: one of the results of an operator, or a view of a value."""
        name, (several, index) = draft["name"], draft["args"]
        results = self._results.get(several.name)
        if several.name in self._growing:
            held = self._grown(self._growing[several.name], index)
        elif results is None:
            held = self.holds[several.name]
        elif index < len(results):
            held = results[index]
        else:
            raise ScheduleError(f"{several.name} has {len(results)} results")
        draft["holds"] = self.holds[name] = held
        if index in self._lists.get(several.name, ()):
            found = self._growing[name] = self._lists[several.name][index]
            found.drafts.append(draft)
            if found.is_used_whole:
                draft["holds"] = self.holds[name] = (*held, *found.grown)

    def complete(self) -> None:
        """Adds the storages of all items to the drafts of their lists, after the last line."""
        for growing in self._growing.values():
            growing.complete(self.holds)

    def inputs(self, tables: ModuleTables) -> Iterator[Input]:
        """The inputs and parameters, once all lines have been parsed."""
        for name in tables.inputs:
            yield Input(name, None, self.holds[name])
        for name in tables.parameters:
            yield Input(f"p.{name}", None, self.holds[f"p.{name}"], static=True)

    def _remember_results(self, name: str, done: CallEffects, draft: dict[str, Any]) -> None:
        if done.grows:
            self._growing[name] = _new_list(name, 0, done, draft)
        elif len(done.results) > 1:
            self._results[name] = done.results
            self._lists[name] = {
                i: _new_list(f"{name}.{i}", i, done, draft)
                for i in done.lists
                if {*done.results[i]} & {*done.allocates}
            }

    def _grown(self, items: "_List", index: int) -> Storages:
        """The storages of an item of a list of new tensors, which the operator allocates too."""
        storage = f"{items.name}.{index}"
        if storage not in items.grown:
            if items.is_used_whole:
                raise ScheduleError(
                    f"items of {items.name} must be selected before it is used as a whole"
                )
            items.grown[storage] = None
        return (storage, *items.aliases)

    def _storages(self, arg: Arg) -> Storages:
        names = [arg.name] if isinstance(arg, Ref) else ref_names(arg)
        for name in self._growing.keys() & names:
            self._growing[name].complete(self.holds)
        return tuple([storage for name in names for storage in self.holds[name]])


@dataclass(eq=False)
class _List:
    """A list of new tensors that an operator returns, whose items have storages of their own.

    Attributes:
        name: the operator, with the position of the list if it is one of several results.
        aliases: the storages of arguments in which an item may lie instead.
        drafts: those of the operator, and of each value that is this list.
        grown: the storages of the items that were selected so far, in order.
        is_used_whole: whether the list is complete; its drafts then have these storages.
    """

    name: str
    aliases: Storages
    drafts: list[dict[str, Any]]
    grown: dict[str, None] = field(default_factory=dict)
    is_used_whole: bool = False

    def complete(self, holds: dict[str, Storages]) -> None:
        """Adds the storages of the items to the drafts and to `holds`; no item can follow."""
        if self.is_used_whole:
            return
        self.is_used_whole = True
        for attribute in ("writes", "allocates"):
            self.drafts[0][attribute] = (*self.drafts[0][attribute], *self.grown)
        for draft in self.drafts:
            draft["holds"] = holds[draft["name"]] = (*draft["holds"], *self.grown)


def _new_list(name: str, position: int, done: CallEffects, draft: dict[str, Any]) -> _List:
    """The list that is one of a call's results."""
    aliases = [each for each in done.results[position] if each not in done.allocates]
    return _List(name, tuple(aliases), [draft])
