"""Memory: no value is used after its drop, no block handed out while it may be in use."""

from collections.abc import Iterable, Sequence

from nimble_fx.errors import ScheduleError
from nimble_fx.excerpt import describe, illegal
from nimble_fx.ir import Task, TaskGraph, ref_names
from nimble_fx.verify_order import HappensBefore


def check_frees(graph: TaskGraph, uses: Iterable[Sequence[str]], happened: HappensBefore) -> None:
    """Plays the references of one call, task by task.

    Args:
        graph: the schedule.
        uses: the values that each task uses.
        happened: its order.
    """
    memory = _Memory(graph, happened)
    for task, used in zip(graph.tasks, uses, strict=True):
        memory.launch(task, used)
        for name in task.frees:
            memory.drop(name, task)
    for name in ref_names(graph.outputs):
        if not memory.is_alive(name):
            raise memory.freed(f"{graph.name} returns {name}", name)


class _Memory:
    """Which values are alive, which of them hold each storage, and what each stream may get."""

    def __init__(self, graph: TaskGraph, happened: HappensBefore) -> None:
        self._graph, self._happened = graph, happened
        values = (*graph.inputs, *graph.constants)
        self._holds = {value.name: value.holds for value in values}
        self._holders: dict[str, set[str]] = {}
        for value in values:
            self._hold(value.name, value.holds)
        self._static = {value.name for value in values if value.static}
        self._static |= {value.name for value in graph.constants}
        self._allocator = {s: task.stream for task in graph.tasks for s in task.allocates}
        self._accesses: dict[str, list[Task]] = {}
        for task in graph.tasks:
            for storage in {*task.reads, *task.writes}:
                self._accesses.setdefault(storage, []).append(task)
        self._newest_of_caller: Task | None = None
        self._given_back: dict[int | None, list[tuple[str, Task]]] = {
            stream: [] for stream in range(graph.n_streams)
        }

    def launch(self, task: Task, used: Sequence[str]) -> None:
        """The task's value comes to life; its stream may be given what was given back."""
        for name in used:
            if name not in self._holds:
                raise self.freed(f"{describe(task)} uses {name}", name, task)
        self._holds[task.name] = task.holds
        self._hold(task.name, task.holds)
        if task.stream is not None:
            if self._given_back[task.stream]:
                self._hand_out(task, task.stream)
            if task.stream == 0:
                self._newest_of_caller = task

    def is_alive(self, name: str) -> bool:
        """Whether something still refers to the value."""
        return name in self._holds

    def freed(self, what: str, name: str, *users: Task) -> ScheduleError:
        """The error of a use after the drop of `name`."""
        last = next((task for task in self._graph.tasks if name in task.frees), None)
        message = f"{what}, which has been freed"
        if last is not None:
            message += f"\n{last.name} frees it: {name} needs to be freed later"
        return illegal(self._graph, message, last, *users)

    def drop(self, name: str, task: Task) -> None:
        """A value is dropped after a task; with the last value in a storage goes its memory."""
        if name in self._static or name not in self._holds:
            message = f"{describe(task)} frees {name}, which it may not"
            raise illegal(self._graph, message, task)
        for storage in self._holds.pop(name):
            holders = self._holders[storage]
            holders.discard(name)
            if not holders:
                self._give_back(storage, task)

    def _hold(self, name: str, storages: Iterable[str]) -> None:
        for storage in storages:
            self._holders.setdefault(storage, set()).add(name)

    def _give_back(self, storage: str, task: Task) -> None:
        """The block goes to the allocating stream; memory that the call was given, to any.

        On stream 0 others may allocate at once. What a side stream is given after this program
        comes after all of it (`Device.settle`).
        """
        owners = self._given_back if storage not in self._allocator else [self._allocator[storage]]
        for stream in owners:
            self._given_back[stream].append((storage, task))
        if 0 in owners:
            self._hand_out(self._newest_of_caller, 0)

    def _hand_out(self, task: Task | None, stream: int) -> None:
        """Whoever may get a block that was given back must come after each access of it."""
        for storage, freed_after in self._given_back[stream]:
            for access in self._accesses.get(storage, ()):
                if access is task:
                    continue
                if task is None or not self._happened.ordered(access, task):
                    raise self._too_early(storage, freed_after, task, access)
        self._given_back[stream].clear()

    def _too_early(
        self, storage: str, freed_after: Task, task: Task | None, access: Task
    ) -> ScheduleError:
        next_one = describe(task) if task else "the caller's next allocation"
        message = (
            f"{storage} is freed after {describe(freed_after)}, but {next_one} "
            f"may get its memory before {describe(access)} is done with it"
        )
        missing = f"{self._happened.missing(access, task)}, or " if task else ""
        message += f"\n{missing}{storage} needs to be freed later"
        return illegal(self._graph, message, freed_after, task, access)
