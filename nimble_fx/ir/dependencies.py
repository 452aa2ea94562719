"""Pure functions on tasks: what must come before what, and what is known to have happened."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from nimble_fx.ir.task_graph import Task, TaskGraph


def hazards(tasks: Iterable[Task]) -> dict[str, tuple[str, ...]]:
    """For each task, the tasks that it must come after: RAW, WAR and WAW on storages.

    `tasks` in program order. An allocation counts as a write. Orders that follow from others at
    once (through the last writer) are left out. Cost: O(accesses).
    """
    writer: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    after: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        earlier: dict[str, None] = {}
        for storage in (*task.reads, *task.writes):
            if storage in writer:
                earlier[writer[storage]] = None
        for storage in task.writes:
            earlier.update(dict.fromkeys(readers.pop(storage, ())))
            writer[storage] = task.name
        for storage in task.reads:
            readers.setdefault(storage, []).append(task.name)
        earlier.pop(task.name, None)
        after[task.name] = tuple(earlier)
    return after


def missing_host_tasks(graph: TaskGraph, name: str, placed: Container[str]) -> list[str]:
    """What launches nothing, is not yet `placed`, and must be before task `name`; in order."""
    found: set[str] = set()
    stack = [name]
    while stack:
        for used in graph.by_name[stack.pop()].uses:
            task = graph.by_name.get(used)
            if task and not task.launches and used not in placed and used not in found:
                found.add(used)
                stack.append(used)
    return sorted(found, key=lambda used: graph.by_name[used].index)


Clock = dict[int, int]
"""For each stream, how many of its tasks have finished."""


@dataclass
class Clocks:
    """Vector clocks of the streams, moved on task by task in launch order.

    Attributes:
        known: for each stream, what has finished once its queue so far has run.
        snapshot: the clock right after each task; an event recorded there carries it.
        place: each task's stream and its position there, from 1.
    """

    known: dict[int, Clock] = field(default_factory=dict)
    snapshot: dict[str, Clock] = field(default_factory=dict)
    place: dict[str, tuple[int, int]] = field(default_factory=dict)

    def wait(self, stream: int, event: str) -> None:
        """The stream waits for the event recorded after task `event`."""
        clock = self.known.setdefault(stream, {})
        for s, n in self.snapshot[event].items():
            clock[s] = max(clock.get(s, 0), n)

    def launch(self, task: str, stream: int) -> None:
        """The stream runs `task` next."""
        clock = self.known.setdefault(stream, {})
        clock[stream] = clock.get(stream, 0) + 1
        self.place[task] = (stream, clock[stream])
        self.snapshot[task] = dict(clock)

    def has_seen(self, stream: int, task: str) -> bool:
        """Whether whatever `stream` runs next happens after `task`."""
        s, n = self.place[task]
        return self.known.get(stream, {}).get(s, 0) >= n
