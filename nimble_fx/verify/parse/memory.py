"""The storages of the values of a text, tracked line by line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task, TaskGraph, ref_names
from nimble_fx.verify.parse.schemas import CallEffects, Storages, effects
from nimble_fx.verify.parse.tables import ModuleTables


class ValueStorages:
    """The storages of the values that a text has defined so far.

    Attributes:
        holds: the storages of each value, each named after its first value.
    """

    def __init__(self, tables: ModuleTables, like: TaskGraph | None) -> None:
        self.holds: dict[str, Storages] = tables.storages
        self._results: dict[str, tuple[Storages, ...]] = {}
        self._lists: dict[str, Mapping[int, dict[str, Any]]] = {}
        self._growing: dict[str, Sequence[dict[str, Any]]] = {}
        self._used_whole: set[str] = set()
        self._operators: Iterator[Task] = iter(())
        if like is not None:
            self._operators = (task for task in like.tasks if not task.is_item)

    def call(self, draft: dict[str, Any]) -> None:
        """Adds the memory effects of a call to the draft of its task."""
        name, target = draft["name"], draft["target"]
        like = next(self._operators, None)
        copies = bool(like.allocates) if like is not None and like.target == target else None
        kwargs = dict(draft["kwargs"])
        done = effects(target, name, draft["args"], kwargs, self._storages, copies)
        draft.update(reads=done.reads, writes=done.writes, allocates=done.allocates)
        draft["holds"] = self.holds[name] = done.holds
        self._remember_results(name, done, draft)

    def item(self, draft: dict[str, Any]) -> None:
        """Adds the storages of an item: one of the results of an operator, or a view of a value."""
        name, (several, index) = draft["name"], draft["args"]
        results = self._results.get(several.name)
        if several.name in self._growing:
            held: Storages = (self._grown(several.name, index),)
        elif results is None:
            held = self.holds[several.name]
        elif index < len(results):
            held = results[index]
        else:
            raise ScheduleError(f"{several.name} has {len(results)} results")
        draft["holds"] = self.holds[name] = held
        if index in self._lists.get(several.name, ()):
            self._growing[name] = (self._lists[several.name][index], draft)

    def inputs(self, tables: ModuleTables) -> Iterator[Input]:
        """The inputs and parameters, once all lines have been parsed."""
        for name in tables.inputs:
            yield Input(name, None, self.holds[name])
        for name in tables.parameters:
            yield Input(f"p.{name}", None, self.holds[f"p.{name}"], static=True)

    def _remember_results(self, name: str, done: CallEffects, draft: dict[str, Any]) -> None:
        if done.grows:
            self._growing[name] = (draft,)
        elif len(done.results) > 1:
            self._results[name] = done.results
            self._lists[name] = {
                i: draft for i in done.lists if {*done.results[i]} & {*done.allocates}
            }

    def _grown(self, several: str, index: int) -> str:
        """The storage of an item of a list of new tensors: the operator allocates that one too."""
        storage, (operator, *items) = f"{several}.{index}", self._growing[several]
        if storage not in self.holds[several]:
            if several in self._used_whole:
                raise ScheduleError(
                    f"items of {several} must be selected before it is used as a whole"
                )
            for attribute in ("writes", "allocates"):
                operator[attribute] = (*operator[attribute], storage)
            for draft in (operator, *items):
                draft["holds"] = self.holds[draft["name"]] = (*draft["holds"], storage)
        return storage

    def _storages(self, arg: Arg) -> Storages:
        names = [arg.name] if isinstance(arg, Ref) else ref_names(arg)
        self._used_whole.update(self._growing.keys() & names)
        return tuple([storage for name in names for storage in self.holds[name]])
