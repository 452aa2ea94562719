"""Memory: no value is used after its drop, no block handed out while it may be in use."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.happens_before import HappensBefore


def check_frees(graph: TaskGraph, uses: Iterable[Sequence[str]], happened: HappensBefore) -> None:
    """Plays the references of one call, task by task.

    Args:
        graph: the schedule.
        uses: the values that each task uses.
        happened: its order.
    """
    _check_lifetimes(graph, uses)
    memory = _Memory(graph, uses, happened)
    for task in graph.tasks:
        memory.launch(task)
        for name in task.frees:
            memory.drop(name, task)


def _check_lifetimes(graph: TaskGraph, uses: Iterable[Sequence[str]]) -> None:
    """Only values that may be dropped are, once, and nothing uses or returns them afterwards."""
    given = (*graph.inputs, *graph.constants)
    kept = {value.name for value in given if value.static}
    kept.update(value.name for value in graph.constants)
    alive = {value.name for value in given}
    for task, used in zip(graph.tasks, uses, strict=True):
        if not alive.issuperset(used):
            name = next(name for name in used if name not in alive)
            raise _freed(graph, f"{describe_task(task)} uses {name}", name, task)
        alive.add(task.name)
        for name in task.frees:
            if name in kept or name not in alive:
                raise _not_to_free(graph, name, task, name in kept)
            alive.discard(name)
    for name in ref_names(graph.outputs):
        if name not in alive:
            raise _freed(graph, f"{graph.name} returns {name}", name)


def _not_to_free(graph: TaskGraph, name: str, task: Task, is_kept: bool) -> ScheduleError:
    before = graph.tasks[: graph.tasks.index(task) + (task.frees.count(name) > 1)]
    first = next((one for one in before if name in one.frees), None)
    why = f"it is freed after {describe_task(first)} already" if first else "it is not made by then"
    why = "the caller keeps it" if is_kept else why
    message = f"{describe_task(task)} frees {name}, which it may not: {why}"
    return illegal(graph, message, task, first)


def _freed(graph: TaskGraph, what: str, name: str, *users: Task) -> ScheduleError:
    last = next(task for task in graph.tasks if name in task.frees)
    cure = "needs to be freed later" if users else "is the caller's and must not be freed"
    message = (
        f"{what}, which has been freed\nit is freed after {describe_task(last)}: {name} {cure}"
    )
    return illegal(graph, message, last, *users)


class _Freed(NamedTuple):
    """A storage whose last value was dropped after a task."""

    value: str
    storage: str
    after: Task

    def __str__(self) -> str:
        return self.value if self.value == self.storage else f"{self.value} (in {self.storage})"


class _Memory:
    """How many live values hold each storage, and what each stream may be given."""

    def __init__(
        self, graph: TaskGraph, uses: Iterable[Sequence[str]], happened: HappensBefore
    ) -> None:
        self._graph, self._happened = graph, happened
        used = {*ref_names(graph.outputs)}.union(*uses)
        given = [value for value in graph.inputs if value.static or value.name in used]
        values = (*given, *graph.constants)  # what nobody uses is dropped before anything else
        self._holds = {value.name: value.holds for value in values}
        self._n_holders: dict[str, int] = {}
        for value in values:
            self._hold(value.holds)
        self._allocator = {s: task.stream for task in graph.tasks for s in task.allocates}
        self._accesses: dict[str, list[Task]] = {}
        for task in graph.tasks:
            for storage in (*task.reads, *task.writes):
                self._accesses.setdefault(storage, []).append(task)
        self._newest_of_caller: Task | None = None
        self._given_back: dict[int | None, list[_Freed]] = {
            stream: [] for stream in range(happened.n_streams)
        }

    def launch(self, task: Task) -> None:
        """The task's value comes to life; its stream may be given what was given back."""
        self._holds[task.name] = task.holds
        self._hold(task.holds)
        if task.stream is not None:
            if self._given_back[task.stream]:
                self._hand_out(task, task.stream)
            if task.stream == 0:
                self._newest_of_caller = task

    def drop(self, name: str, task: Task) -> None:
        """A value is dropped after a task; with the last value in a storage goes its memory."""
        for storage in self._holds.pop(name, ()):
            self._n_holders[storage] -= 1
            if not self._n_holders[storage]:
                self._give_back(_Freed(name, storage, task))

    def _hold(self, storages: Iterable[str]) -> None:
        for storage in storages:
            self._n_holders[storage] = self._n_holders.get(storage, 0) + 1

    def _give_back(self, freed: _Freed) -> None:
        """The block goes to the allocating stream; memory that the call was given, to any.

        On stream 0 others may allocate at once. What a side stream is given after this program
        comes after all of it (`Device.settle`).
        """
        is_own = freed.storage in self._allocator
        owners = [self._allocator[freed.storage]] if is_own else self._given_back
        for stream in owners:
            self._given_back[stream].append(freed)
        if 0 in owners:
            self._hand_out(None, 0)

    def _hand_out(self, task: Task | None, stream: int) -> None:
        """Whoever may get a block that was given back must come after each access of it.

        Args:
            task: who gets it; None for another thread on stream 0, which has seen done what the
                stream's newest task has.
            stream: where it is handed out.
        """
        seen = task or self._newest_of_caller
        for freed in self._given_back[stream]:
            for access in self._accesses.get(freed.storage, ()):
                if access is seen:
                    continue
                if seen is None or not self._happened.ordered(access, seen):
                    raise self._too_early(freed, task, access)
        self._given_back[stream].clear()

    def _too_early(self, freed: _Freed, task: Task | None, access: Task) -> ScheduleError:
        next_one = describe_task(task) if task else "whatever stream 0 is given next"
        message = (
            f"{freed} is freed after {describe_task(freed.after)}, but {next_one} "
            f"may get its memory before {describe_task(access)} is done with it"
        )
        if task is not None:
            message += f"\n{self._happened.missing(access, task)}, or "
        else:
            newest = self._newest_of_caller
            message += (
                f"\nstream 0 has been given nothing that waits for {access.name}"
                f"{f'; its newest task is {newest.name}' if newest else ''}: "
            )
        message += f"{freed.value} needs to be freed later"
        seen = task or self._newest_of_caller
        return illegal(self._graph, message, freed.after, seen, access)
