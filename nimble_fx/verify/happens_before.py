"""Happens-before by vector clocks, and the checks of hazards, forks and joins against it."""

from collections.abc import Collection

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.verify.diagnostics import describe_task, illegal

Clock = list[int]
"""A vector clock: for each stream, how many of its tasks are done."""


class HappensBefore:
    """The happens-before order of launching tasks, by stream order and events.

    Attributes:
        n_streams: the number of streams.
        stream: the stream of each task.
        position: the position of each task in its stream, from 1.
        known: the clock of each task: how many tasks of each other stream happen before it; tasks
            between two waits of a stream share one clock.
        launched: the number of tasks of each stream.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.n_streams = graph.n_streams
        self.stream: dict[str, int] = {}
        self.position: dict[str, int] = {}
        self.known: dict[str, Clock] = {}
        self.launched = [0] * self.n_streams
        self._clocks = clocks = [[0] * self.n_streams for _ in range(self.n_streams)]
        for task in graph.tasks:
            stream = task.stream
            if stream is None:
                continue
            for name in task.waits:
                if name not in self.stream:
                    message = f"{describe_task(task)} waits for {name}, which is launched later"
                    raise illegal(graph, message, task, graph.by_name.get(name))
                clocks[stream] = self._joined(clocks[stream], name)
            self.launched[stream] += 1
            self.stream[task.name] = stream
            self.position[task.name] = self.launched[stream]
            self.known[task.name] = clocks[stream]

    def ordered(self, first: Task, second: Task) -> bool:
        """Whether `first` happens before `second`."""
        stream, position = self.stream[first.name], self.position[first.name]
        if stream == second.stream:
            return position < self.position[second.name]
        return self.known[second.name][stream] >= position

    def at_the_end(self, joins: Collection[str]) -> Clock:
        """The clock of stream 0 after the program.

        Args:
            joins: the tasks that stream 0 waits for at the end.
        """
        clock = self._clocks[0] if self._clocks else []
        for name in joins:
            clock = self._joined(clock, name)
        return [*self.launched[:1], *clock[1:]]

    def explain_race(self, first: Task, second: Task) -> str:
        """Why two tasks are not ordered, and what would order them."""
        stream, own = self.stream[first.name], self.stream[second.name]
        launched = list(self.stream)
        if launched.index(second.name) < launched.index(first.name):
            return (
                f"{second.name} is launched first, on stream {own}, and {first.name} after it, on "
                f"stream {stream}: {first.name} needs to be launched before {second.name}"
            )
        waits = f"waits for {', '.join(second.waits)}" if second.waits else "waits for nothing"
        n_done = self.known[second.name][stream]
        done = (
            f"only the first {n_done} are"
            if n_done > 1
            else "only the first is"
            if n_done
            else "none is"
        )
        return (
            f"{second.name} is task {self.position[second.name]} of stream {own} and {waits}; "
            f"{first.name} is task {self.position[first.name]} of stream {stream}, of which "
            f"{done} sure to be done by then: {second.name} needs to wait for {first.name}"
        )

    def _joined(self, clock: Clock, name: str) -> Clock:
        """The maximum of a clock and the clock right after task `name`."""
        stream, position = self.stream[name], self.position[name]
        joined = list(map(max, clock, self.known[name]))
        joined[stream] = max(joined[stream], position)
        return joined


def check_forks(graph: TaskGraph, forks: Collection[str]) -> None:
    """Checks that each side stream's first task happens after the fork event."""
    started = {0}
    for task in graph.tasks:
        if task.stream is not None and task.stream not in started:
            if task.name not in forks and not task.waits:
                message = (
                    f"{describe_task(task)} starts a stream that never forks\n"
                    f"{task.name} needs to wait for the fork, or for a task of a stream that "
                    "has forked"
                )
                raise illegal(graph, message, task)
            started.add(task.stream)


def check_joins(graph: TaskGraph, joins: Collection[str], order: HappensBefore) -> None:
    """Checks that every task happens before whatever stream 0 runs after the program.

    Later work reads the outputs and the written inputs, and reuses memory that the program frees at
    its return. CUDA too refuses a capture with a stream whose last task is not joined.
    """
    done = order.at_the_end(joins)
    for task in graph.launching:
        stream, position = order.stream[task.name], order.position[task.name]
        if position > done[stream]:
            last = next(t for t in reversed(graph.launching) if t.stream == stream)
            message = (
                f"{describe_task(task)} does not happen before the end of the program\n"
                f"stream 0 needs to wait for {last.name} at the end"
            )
            raise illegal(graph, message, task)


def check_hazards(graph: TaskGraph, order: HappensBefore) -> None:
    """Checks that tasks with a RAW, WAR or WAW hazard happen in program order."""
    writer: dict[str, Task] = {}
    readers: dict[str, list[Task]] = {}

    for task in sorted(graph.launching, key=lambda task: task.index):
        for storage in task.reads:
            if storage in writer and not order.ordered(writer[storage], task):
                raise _race(graph, order, writer[storage], task, storage, "reads", "written")
            readers.setdefault(storage, []).append(task)
        for storage in task.writes:
            for reader in readers.pop(storage, ()):
                if reader is not task and not order.ordered(reader, task):
                    raise _race(graph, order, reader, task, storage, "overwrites", "read")
            if storage in writer and not order.ordered(writer[storage], task):
                last = writer[storage]
                raise _race(graph, order, last, task, storage, "overwrites", "written")
            writer[storage] = task


def _race(
    graph: TaskGraph,
    order: HappensBefore,
    first: Task,
    second: Task,
    storage: str,
    does: str,
    done: str,
) -> ScheduleError:
    message = (
        f"race on storage {storage}: {describe_task(second)} {does} what is {done} by "
        f"{describe_task(first)}, but does not happen after it\n{order.explain_race(first, second)}"
    )
    return illegal(graph, message, first, second)
