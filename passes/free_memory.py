"""Decides after which task each value is freed: as early as its memory may be reused."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from nimble_fx.ir.dependencies import StreamClock, VectorClocks
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names, shared_by_inputs

CALLERS_STREAM = 0

Accesses = list[tuple[int, int]]
"""Tasks that access a storage, each as its stream and its position there."""


@dataclass(frozen=True)
class FreeMemory:
    """Frees each value after its last use, but not before its memory can safely be reused.

    A caching allocator gives a freed block at once to the next allocation on the stream that
    allocated it. So the last value in a storage is freed when the next task of that stream happens
    after every task that reads or writes the storage; values that share the storage with a later
    one are freed after their own last use. Memory of inputs may belong to any stream. On stream 0,
    the caller's, other threads may allocate at any time, so each point in launch order counts.

    Requires: streams assigned; waits inserted; tasks in launch order.
    Ensures: outputs, parameters and constants are never freed, nor are inputs that share a storage:
    in another call each may have memory of its own. A value with an access that does not happen
    before the last task of stream 0 lives until the call returns.

    Before: exp on stream 0 is last read by sigmoid on stream 1, which add on stream 0 waits for
    After:  add frees exp; sigmoid does not
    """

    name = "free-memory"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with `frees` set. Cost: O((tasks + accesses) x streams), times a log."""
        dropped_at = defaultdict(list)
        for value, position in _drop_positions(graph).items():
            dropped_at[position].append(value)
        return graph.replace_tasks(
            task.updated(frees=tuple(dropped_at[i])) for i, task in enumerate(graph.tasks)
        )


def _drop_positions(graph: TaskGraph) -> dict[str, int]:
    """For each value that may be freed, the position of the task to free it after.

    Of the values in a storage, the one that is used last keeps it until the storage is safe. The
    others need not: each is defined from a value that is freed no earlier than that.
    """
    last_use: dict[str, float] = {task.name: i for i, task in enumerate(graph.tasks)}
    for i, task in enumerate(graph.tasks):
        last_use.update(dict.fromkeys(task.uses, i))
    last_use.update(dict.fromkeys(ref_names(graph.outputs), inf))
    callers = {s for v in (*graph.inputs, *graph.constants) if v.static for s in v.holds}
    callers |= shared_by_inputs(graph)
    inputs = [v for v in graph.inputs if v.name in last_use and callers.isdisjoint(v.holds)]
    values = [v for v in inputs if not v.static] + list(graph.tasks)
    keeper: dict[str, str] = {}
    for value in sorted(values, key=lambda value: last_use[value.name]):
        keeper.update(dict.fromkeys(value.holds, value.name))
    safe = _safe_positions(graph, callers)
    positions = {}
    for value in values:
        kept = [s for s in value.holds if keeper[s] == value.name and s not in callers]
        position = max([last_use[value.name], *(safe.get(s, inf) for s in kept)])
        if position < inf:
            positions[value.name] = int(position)
    return positions


def _safe_positions(graph: TaskGraph, never_freed: Container[str]) -> dict[str, float]:
    """For each storage, the first position after which its memory may be reused.

    That is after the last access of the storage, and after the last launch on its stream that does
    not happen after all accesses. Storages in `never_freed` have no such position.
    """
    accesses = _last_accesses(graph, never_freed)
    allocator = {s: [stream] for task, stream in _placed(graph) for s in task.allocates}
    every_stream = list(range(graph.n_streams))
    position = {task.name: i for i, task in enumerate(graph.tasks)}
    finished = _finished_at(accesses, position)
    streams = [_Stream() for _ in every_stream]
    clocks = VectorClocks()
    safe: dict[str, float] = {}
    for task, stream in _placed(graph):
        for name in task.waits:
            clocks.wait(stream, name)
        if stream != CALLERS_STREAM:
            known = clocks.known.get(stream, {})
            streams[stream].update(safe, known, has_waited=bool(task.waits))
        clocks.launch(task.name, stream)
        streams[stream].last_launch = position[task.name]
        for storage in finished.get(task.name, ()):
            safe[storage] = position[task.name]
            missing = [clocks.position[user] for user in accesses[storage].values()]
            for owner in allocator.get(storage, every_stream):
                streams[owner].new.append((storage, missing))
        callers = streams[CALLERS_STREAM]
        callers.last_launch = position[task.name]
        known = clocks.known.get(CALLERS_STREAM, {})
        callers.update(safe, known, has_waited=stream == CALLERS_STREAM)
    for i, owner_stream in enumerate(streams):
        owner_stream.last_launch = inf if i == CALLERS_STREAM else owner_stream.last_launch
        owner_stream.end(safe)
    return safe


@dataclass
class _Stream:
    """The storages that a stream owns, each with the accesses that do not happen before its end."""

    new: list[tuple[str, Accesses]] = field(default_factory=list)
    unsafe: dict[int, list[tuple[int, str, Accesses]]] = field(default_factory=dict)
    """Heaps: by the stream of the first of a storage's accesses, in the order of its positions."""
    last_launch: float = 0

    def update(self, safe: dict[str, float], known: StreamClock, has_waited: bool) -> None:
        """Delays storages with accesses outside the clock `known` until after the last launch."""
        checked, self.new = self.new, []
        if has_waited:  # else its clock is as it was at the last update
            for stream, heap in self.unsafe.items():
                while heap and heap[0][0] <= known.get(stream, 0):
                    checked.append(heappop(heap)[1:])
        self._delay(safe, [storage for storage, _ in checked])
        for storage, accesses in checked:
            missing = [(s, n) for s, n in accesses if known.get(s, 0) < n]
            if missing:
                stream, position = missing[0]
                heappush(self.unsafe.setdefault(stream, []), (position, storage, missing))

    def end(self, safe: dict[str, float]) -> None:
        """Delays the storages with accesses that its last task does not happen after."""
        self._delay(safe, [storage for heap in self.unsafe.values() for _, storage, _ in heap])

    def _delay(self, safe: dict[str, float], storages: Iterable[str]) -> None:
        """Sets the safe positions of storages to the last launch or later."""
        for storage in storages:
            safe[storage] = max(safe[storage], self.last_launch)


def _placed(graph: TaskGraph) -> Iterator[tuple[Task, int]]:
    """The tasks that have a stream, each with it, in launch order."""
    return ((task, task.stream) for task in graph.tasks if task.stream is not None)


def _last_accesses(graph: TaskGraph, never_freed: Container[str]) -> dict[str, dict[int, str]]:
    """For each storage that may be freed, the last task on each stream that reads or writes it."""
    accesses: dict[str, dict[int, str]] = defaultdict(dict)
    for task, stream in _placed(graph):
        for storage in (*task.reads, *task.writes):
            if storage not in never_freed:
                accesses[storage][stream] = task.name
    return accesses


def _finished_at(
    accesses: Mapping[str, Mapping[int, str]], position: Mapping[str, int]
) -> dict[str, list[str]]:
    """For each task, the storages that no later task reads or writes."""
    finished: dict[str, list[str]] = defaultdict(list)
    for storage, last in accesses.items():
        finished[max(last.values(), key=position.__getitem__)].append(storage)
    return finished
