"""Schedules broken on purpose: each differs from a given one in one wait, free, stream or fork.

Not every mutant is illegal: a leak is allowed, and so is a wait that comes too early. Which are
is for the judges to say.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from random import Random
from typing import Any, TypeVar

from nimble_fx.ir.task_graph import Task, TaskGraph

_T = TypeVar("_T")


@dataclass(frozen=True)
class Mutant:
    """A schedule with one change, such as "add no longer waits for sigmoid"."""

    kind: str
    description: str
    graph: TaskGraph


Edit = tuple[str, Callable[[], TaskGraph]]
"""A change in words, and what makes it: large graphs have many more edits than anyone tries."""


def mutants(graph: TaskGraph, limit: int | None = None, seed: int = 0) -> Iterator[Mutant]:
    """The mutants of a schedule, kind by kind; the same ones each time.

    Args:
        graph: a scheduled graph.
        limit: how many of each kind; None for all of them.
        seed: chooses among them where there are more.
    """
    chooser = Random(seed)
    for kind, edits in KINDS.items():
        for description, make in sample(edits(graph), limit, chooser):
            yield Mutant(kind, description, make())


def sample(edits: Iterable[_T], limit: int | None, chooser: Random) -> list[_T]:
    """All of them, or a random `limit` of them, of which no more are held (reservoir sampling)."""
    kept: list[_T] = []
    for seen, edit in enumerate(edits):
        if limit is None or seen < limit:
            kept.append(edit)
        elif (place := chooser.randint(0, seen)) < limit:
            kept[place] = edit
    return kept


def edited(graph: TaskGraph, task_name: str, /, **changes: Any) -> TaskGraph:
    """The graph with other attributes of one task."""
    return _with(graph, {task_name: changes})


def _with(graph: TaskGraph, changes: dict[str, dict[str, Any]]) -> TaskGraph:
    """The graph with other attributes of the tasks that are named."""
    tasks = (replace(t, **changes[t.name]) if t.name in changes else t for t in graph.tasks)
    return replace(graph, tasks=tuple(tasks))


def _but(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _waits(graph: TaskGraph) -> Iterator[tuple[Task, str]]:
    return ((task, awaited) for task in graph.launching for awaited in task.waits)


def _deleted_waits(graph: TaskGraph) -> Iterator[Edit]:
    for task, awaited in _waits(graph):
        changes = {task.name: {"waits": _but(task.waits, awaited)}}
        yield f"{task.name} no longer waits for {awaited}", partial(_with, graph, changes)


def _later_waits(graph: TaskGraph) -> Iterator[Edit]:
    """Too late, unless the task that waited did not need it."""
    following = {one.name: two for one, two in _neighbours(graph)}
    return _moved_waits(graph, following)


def _earlier_waits(graph: TaskGraph) -> Iterator[Edit]:
    """Harmless to the order of the tasks."""
    preceding = {two.name: one for one, two in _neighbours(graph)}
    return _moved_waits(graph, preceding)


def _moved_waits(graph: TaskGraph, carriers: dict[str, Task]) -> Iterator[Edit]:
    """Each wait given to a neighbour, if what it waits for is launched before that."""
    position = _positions(graph)
    for task, awaited in _waits(graph):
        carrier = carriers.get(task.name)
        if carrier is None or awaited in carrier.waits:
            continue
        if position[awaited] < position[carrier.name]:
            changes = {
                task.name: {"waits": _but(task.waits, awaited)},
                carrier.name: {"waits": (*carrier.waits, awaited)},
            }
            description = f"{carrier.name} waits for {awaited} instead of {task.name}"
            yield description, partial(_with, graph, changes)


def _redirected_waits(graph: TaskGraph) -> Iterator[Edit]:
    """Each wait for each other task that is launched before it on another stream."""
    position = _positions(graph)
    for task, awaited in _waits(graph):
        for other in graph.launching:
            if position[other.name] >= position[task.name]:
                break
            if other.stream != task.stream and other.name not in task.waits:
                waits = (*_but(task.waits, awaited), other.name)
                description = f"{task.name} waits for {other.name} instead of {awaited}"
                yield description, partial(_with, graph, {task.name: {"waits": waits}})


def _neighbours(graph: TaskGraph) -> Iterator[tuple[Task, Task]]:
    """Each two tasks that follow each other on a stream."""
    queues: dict[int | None, list[Task]] = {}
    for task in graph.launching:
        queues.setdefault(task.stream, []).append(task)
    return (pair for queue in queues.values() for pair in pairwise(queue))


def _positions(graph: TaskGraph) -> dict[str, int]:
    return {task.name: i for i, task in enumerate(graph.tasks)}


def _deleted_frees(graph: TaskGraph) -> Iterator[Edit]:
    """Leaks, which are legal."""
    for task in graph.tasks:
        for name in task.frees:
            changes = {task.name: {"frees": _but(task.frees, name)}}
            yield f"{task.name} no longer frees {name}", partial(_with, graph, changes)


def _earlier_frees(graph: TaskGraph) -> Iterator[Edit]:
    """Right after the value is made, around its last use, before each access elsewhere."""
    position = _positions(graph)
    for at, task in enumerate(graph.tasks):
        for name in task.frees:
            made = position.get(name, 0)
            uses = [i for i, user in enumerate(graph.tasks) if name in user.uses]
            last_use = max(uses, default=made)
            places = {made, last_use - 1, last_use, *_before_foreign_accesses(graph, name)}
            yield from _moved_free(graph, task, name, (i for i in places if made <= i < at))


def _before_foreign_accesses(graph: TaskGraph, name: str) -> Iterator[int]:
    """The positions right before tasks that access the value's memory on other streams."""
    maker = next(value for value in graph.values if value.name == name)
    home = maker.stream if isinstance(maker, Task) else None
    for i, task in enumerate(graph.tasks):
        if task.stream != home and not {*task.reads, *task.writes}.isdisjoint(maker.holds):
            yield i - 1


def _later_frees(graph: TaskGraph) -> Iterator[Edit]:
    """One task later and at the very end: harmless."""
    last = len(graph.tasks) - 1
    for at, task in enumerate(graph.tasks):
        for name in task.frees:
            yield from _moved_free(graph, task, name, {i for i in (at + 1, last) if at < i <= last})


def _moved_free(graph: TaskGraph, task: Task, name: str, places: Iterable[int]) -> Iterator[Edit]:
    for i in sorted(places):
        other = graph.tasks[i]
        changes = {
            task.name: {"frees": _but(task.frees, name)},
            other.name: {"frees": (*other.frees, name)},
        }
        yield f"{other.name} frees {name} instead of {task.name}", partial(_with, graph, changes)


def _swapped_streams(graph: TaskGraph) -> Iterator[Edit]:
    for one, two in combinations(graph.launching, 2):
        if one.stream != two.stream:
            changes = {one.name: {"stream": two.stream}, two.name: {"stream": one.stream}}
            yield f"{one.name} and {two.name} swap streams", partial(_with, graph, changes)


def _other_streams(graph: TaskGraph) -> Iterator[Edit]:
    """Each task on each other stream, unless its own would be left empty."""
    streams = [task.stream for task in graph.launching]
    for task in graph.launching:
        if streams.count(task.stream) == 1:
            continue
        for stream in sorted({s for s in streams if s is not None} - {task.stream}):
            changes = {task.name: {"stream": stream}}
            yield f"{task.name} runs on stream {stream}", partial(_with, graph, changes)


def _deleted_forks(graph: TaskGraph) -> Iterator[Edit]:
    for name in graph.forks:
        yield f"{name} does not wait for the fork", partial(_unsynchronized, graph, "forks", name)


def _deleted_joins(graph: TaskGraph) -> Iterator[Edit]:
    for name in graph.joins:
        yield f"stream 0 does not join {name}", partial(_unsynchronized, graph, "joins", name)


def _unsynchronized(graph: TaskGraph, attribute: str, name: str) -> TaskGraph:
    """The IR works forks and joins out by itself, so that this is a graph which lies about them."""
    copy = replace(graph)
    vars(copy)[attribute] = _but(getattr(graph, attribute), name)
    return copy


KINDS: dict[str, Callable[[TaskGraph], Iterator[Edit]]] = {
    "wait deleted": _deleted_waits,
    "wait later": _later_waits,
    "wait earlier": _earlier_waits,
    "wait redirected": _redirected_waits,
    "free deleted": _deleted_frees,
    "free earlier": _earlier_frees,
    "free later": _later_frees,
    "streams swapped": _swapped_streams,
    "other stream": _other_streams,
    "fork deleted": _deleted_forks,
    "join deleted": _deleted_joins,
}
"""Each kind of mutant with what finds its edits in a graph."""
