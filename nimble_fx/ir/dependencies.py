"""Dependencies between tasks, and vector clocks that say what happens before what."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from nimble_fx.ir.task_graph import Task, TaskGraph


def hazards(tasks: Iterable[Task]) -> dict[str, tuple[str, ...]]:
    """For each task, the tasks that must happen before it: RAW, WAR and WAW hazards on storages.

    `tasks` are in program order. An allocation counts as a write. Orders that the last writer
    implies are left out. Cost: O(accesses).
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


def unplaced_host_tasks(graph: TaskGraph, name: str, placed: Container[str]) -> list[str]:
    """The host-only tasks that task `name` depends on and that are not yet `placed`, in order."""
    found: set[str] = set()
    stack = [name]
    while stack:
        for used in graph.by_name[stack.pop()].uses:
            task = graph.by_name.get(used)
            if task and not task.launches and used not in placed and used not in found:
                found.add(used)
                stack.append(used)
    return sorted(found, key=lambda used: graph.by_name[used].index)


StreamClock = dict[int, int]
"""A vector clock: for each stream, how many of its tasks have finished."""


@dataclass
class VectorClocks:
    """Vector clocks of the streams, advanced task by task in launch order.

    Attributes:
        known: for each stream, its clock: what has finished once its queue so far has run.
        snapshot: for each task, its stream's clock right after it; an event recorded there has it.
        position: each task's stream and its position there, from 1.
    """

    known: dict[int, StreamClock] = field(default_factory=dict)
    snapshot: dict[str, StreamClock] = field(default_factory=dict)
    position: dict[str, tuple[int, int]] = field(default_factory=dict)

    def wait(self, stream: int, event: str) -> None:
        """Advances the clock of a stream that waits for the event recorded after task `event`."""
        clock = self.known.setdefault(stream, {})
        for s, n in self.snapshot[event].items():
            clock[s] = max(clock.get(s, 0), n)

    def launch(self, task: str, stream: int) -> None:
        """Advances the clock of a stream that runs `task` next."""
        clock = self.known.setdefault(stream, {})
        clock[stream] = clock.get(stream, 0) + 1
        self.position[task] = (stream, clock[stream])
        self.snapshot[task] = dict(clock)

    def has_seen(self, stream: int, task: str) -> bool:
        """Whether the next task of `stream` happens after `task`."""
        s, n = self.position[task]
        return self.known.get(stream, {}).get(s, 0) >= n
