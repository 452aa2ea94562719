"""The one definition of a legal schedule. It shares no code with the passes that make schedules.

A schedule is legal when every order that the program means (RAW, WAR and WAW on storages) happens
before by stream order and events, every value is made before it is used and dropped after, memory
is given back only when the stream that gets it next comes after its last access, and random draws
and side effects are launched in program order.
"""

from collections.abc import Iterable
from itertools import pairwise

from nimble_fx.errors import ScheduleError
from nimble_fx.ir import Task, TaskGraph, ref_names

Clock = list[int]

_MEANING = ("target", "args", "kwargs", "index", "reads", "writes", "allocates", "holds", "ordered")


def verify(graph: TaskGraph, traced: TaskGraph | None = None) -> None:
    """Proves a schedule free of races, or says what races with what.

    What is proved holds within one call, given what each task says that it reads and writes.
    Cost: O(tasks x streams + accesses).

    Args:
        graph: the schedule.
        traced: the program that it schedules; the same tasks must do the same.

    Raises:
        ScheduleError: it names the two tasks, their streams, the storage and the user's lines.
    """
    if traced is not None:
        _check_same_program(graph, traced)
    verify_structure(graph)
    _check_accesses(graph)
    _check_placement(graph)
    happened = _HappensBefore(graph)
    _check_hazards(graph, happened)
    _check_host_order(graph)
    _check_frees(graph, happened)


def verify_structure(graph: TaskGraph) -> None:
    """Checks what holds of every graph, scheduled or not: names, and values made before use.

    Raises:
        ScheduleError: a name comes twice, or a task uses or comes after what is not there yet.
    """
    known = [value.name for value in (*graph.inputs, *graph.constants)]
    defined = set(known)
    for task in graph.tasks:
        if task.name in defined:
            raise ScheduleError(f"two values are named {task.name}")
        for name in (*task.uses, *task.after):
            if name not in defined:
                raise ScheduleError(f"{_describe(task)} needs {name}, which is not made before it")
        defined.add(task.name)
    missing = [name for name in ref_names(graph.outputs) if name not in defined]
    if missing or len(set(known)) != len(known):
        raise ScheduleError(f"{graph.name} returns {missing} or names an input twice: {known}")


def _check_same_program(graph: TaskGraph, traced: TaskGraph) -> None:
    """A schedule adds streams, waits, frees and an order; what the tasks do stays as it was."""
    scheduled, program = ({task.name: task for task in g.tasks} for g in (graph, traced))
    if scheduled.keys() != program.keys() or graph.outputs != traced.outputs:
        changed = sorted(scheduled.keys() ^ program.keys())
        raise ScheduleError(f"the schedule of {graph.name} loses or adds tasks: {changed}")
    for name, task in scheduled.items():
        for attribute in _MEANING:
            if getattr(task, attribute) != getattr(program[name], attribute):
                raise ScheduleError(f"the schedule changes {attribute} of {_describe(task)}")


def _check_accesses(graph: TaskGraph) -> None:
    """A task that launches says of the memory of each value that it uses that it accesses it."""
    holds = {value.name: value.holds for value in graph.values}
    indices = {task.index for task in graph.tasks}
    if len(indices) != len(graph.tasks):
        raise ScheduleError(f"tasks of {graph.name} share an index: program order is not known")
    for task in graph.launching:
        silent = {s for name in task.uses for s in holds[name]}.difference(task.reads, task.writes)
        if silent or not set(task.allocates) <= set(task.writes):
            raise ScheduleError(f"{_describe(task)} does not say that it accesses {silent}")


class _HappensBefore:
    """For each launching task, how many tasks of each stream finish before it starts."""

    def __init__(self, graph: TaskGraph) -> None:
        n = graph.n_streams
        self.place: dict[str, tuple[int, int]] = {}
        self.before: dict[str, Clock] = {}
        self.final = [[0] * n for _ in range(n)]
        recorded: dict[str, Clock] = {}
        for task in graph.tasks:
            if task.stream is None:
                continue
            clock = self.final[task.stream]
            for name in task.waits:
                if name not in recorded:
                    raise ScheduleError(f"{_describe(task)} waits for {name} before its launch")
                clock = list(map(max, clock, recorded[name]))
            self.before[task.name] = clock
            done = list(clock)
            done[task.stream] += 1
            self.place[task.name] = (task.stream, done[task.stream])
            self.final[task.stream] = recorded[task.name] = done

    def ordered(self, first: Task, second: Task) -> bool:
        stream, position = self.place[first.name]
        return self.before[second.name][stream] >= position


def _check_placement(graph: TaskGraph) -> None:
    """Launching tasks are on streams 0..n-1, all of which are joined into stream 0 at the end."""
    for task in graph.launching:
        if task.stream is None:
            raise ScheduleError(f"{task.name} launches kernels without a stream")
    used = {task.stream for task in graph.launching}
    if used != set(range(len(used))):
        raise ScheduleError(f"{graph.name} uses streams {used}, which are not 0, 1, 2, ...")
    for task in graph.tasks:
        if not task.launches and (task.stream is not None or task.waits):
            raise ScheduleError(f"{_describe(task)} launches nothing but has a stream or waits")
    _check_forks(graph)
    _check_joins(graph)


def _check_forks(graph: TaskGraph) -> None:
    """Each stream's first task comes after the fork event, directly or through a wait."""
    started = {0}
    for task in graph.tasks:
        if task.stream is not None and task.stream not in started:
            if task.name not in graph.forks and not task.waits:
                raise ScheduleError(f"{_describe(task)} starts a stream that never forks")
            started.add(task.stream)


def _check_joins(graph: TaskGraph) -> None:
    """Backwards from the joins: each stream's last task reaches stream 0."""
    joined = {0}
    last = {task.stream: task.name for task in graph.tasks if task.stream is not None}
    for task in reversed(graph.tasks):
        if task.name in graph.joins and task.stream is not None:
            joined.add(task.stream)
        if task.stream in joined:
            joined |= {s for s, name in last.items() if s is not None and name in task.waits}
    for stream in last.keys() - joined:
        raise ScheduleError(f"stream {stream} ends with {last[stream]} and is never joined")


def _check_hazards(graph: TaskGraph, happened: _HappensBefore) -> None:
    writer: dict[str, Task] = {}
    readers: dict[str, list[Task]] = {}
    for task in sorted(graph.launching, key=lambda task: task.index):
        for storage in task.reads:
            if storage in writer:
                _require(happened, writer[storage], task, storage, "reads what is written by")
            readers.setdefault(storage, []).append(task)
        for storage in task.writes:
            for reader in readers.pop(storage, ()):
                if reader is not task:
                    _require(happened, reader, task, storage, "overwrites what is read by")
            if storage in writer:
                _require(happened, writer[storage], task, storage, "overwrites what is written by")
            writer[storage] = task


def _require(happened: _HappensBefore, first: Task, second: Task, storage: str, how: str) -> None:
    if not happened.ordered(first, second):
        raise ScheduleError(
            f"race on storage {storage}: {_describe(second)} {how} {_describe(first)}, "
            "but does not happen after it"
        )


def _check_host_order(graph: TaskGraph) -> None:
    ordered = [task for task in graph.tasks if task.ordered]
    for first, second in pairwise(ordered):
        if first.index > second.index:
            raise ScheduleError(f"{_describe(second)} must be launched before {_describe(first)}")


def _check_frees(graph: TaskGraph, happened: _HappensBefore) -> None:
    """Plays the references: no use after a drop, no block handed out while it may be in use."""
    memory = _Memory(graph, happened)
    for task in graph.tasks:
        memory.launch(task)
        for name in task.frees:
            memory.drop(name, task)
    for name in ref_names(graph.outputs):
        memory.require_alive(name, f"{graph.name} returns {name}")


class _Memory:
    """Which values are alive, which of them hold each storage, and what each stream may get."""

    def __init__(self, graph: TaskGraph, happened: _HappensBefore) -> None:
        self._graph, self._happened = graph, happened
        values = (*graph.inputs, *graph.constants)
        self._holds = {value.name: value.holds for value in values}
        self._holders: dict[str, set[str]] = {}
        for value in values:
            self._hold(value.name, value.holds)
        self._static = {value.name for value in values if value.static}
        self._static |= {value.name for value in graph.constants}
        self._allocator = {s: t.stream for t in graph.tasks for s in t.allocates}
        self._accesses: dict[str, list[Task]] = {}
        for task in graph.launching:
            for storage in dict.fromkeys((*task.reads, *task.writes)):
                self._accesses.setdefault(storage, []).append(task)
        self._newest_of_caller: Task | None = None
        self._given_back: dict[int | None, list[tuple[str, Task]]] = {
            stream: [] for stream in range(graph.n_streams)
        }

    def launch(self, task: Task) -> None:
        """The task's value comes to life; its stream may be given what was given back."""
        for name in task.uses:
            self.require_alive(name, f"{_describe(task)} uses {name}")
        self._holds[task.name] = task.holds
        self._hold(task.name, task.holds)
        if task.stream is not None:
            self._hand_out(task, task.stream)
        if task.stream == 0:
            self._newest_of_caller = task

    def require_alive(self, name: str, what: str) -> None:
        if name not in self._holds:
            raise ScheduleError(f"{what}, which has been freed")

    def drop(self, name: str, task: Task) -> None:
        """A value is dropped after a task; with the last value in a storage goes its memory."""
        if name in self._static or name not in self._holds:
            raise ScheduleError(f"{_describe(task)} frees {name}, which it may not")
        for storage in self._holds.pop(name):
            self._holders[storage].discard(name)
            if not self._holders[storage]:
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
                if task is None or (
                    access is not task and not self._happened.ordered(access, task)
                ):
                    next_one = _describe(task) if task else "the caller's next allocation"
                    raise ScheduleError(
                        f"{storage} is freed after {_describe(freed_after)}, but {next_one} "
                        f"may get its memory before {_describe(access)} is done with it"
                    )
        self._given_back[stream].clear()


def _describe(task: Task) -> str:
    where = "launches nothing" if task.stream is None else f"stream {task.stream}"
    line = f", {task.source}: {task.source.code}" if task.source else ""
    return f"{task.name} ({where}{line})"
