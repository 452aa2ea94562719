"""What happens before what: streams, events, forks and joins, against what the program means."""

from collections.abc import Collection
from itertools import pairwise

from nimble_fx.errors import ScheduleError
from nimble_fx.excerpt import describe, illegal
from nimble_fx.ir import Task, TaskGraph

Clock = list[int]


class HappensBefore:
    """For each launching task, how many tasks of each stream finish before it starts.

    Attributes:
        place: each task's stream, and its position there from 1.
        before: what has finished when the task starts.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.place: dict[str, tuple[int, int]] = {}
        self.before: dict[str, Clock] = {}
        n = graph.n_streams
        known = [[0] * n for _ in range(n)]
        recorded: dict[str, Clock] = {}
        for task in graph.tasks:
            stream = task.stream
            if stream is None:
                continue
            clock = known[stream]
            for name in task.waits:
                if name not in recorded:
                    message = f"{describe(task)} waits for {name} before its launch"
                    raise illegal(graph, message, task, graph.by_name.get(name))
                clock = list(map(max, clock, recorded[name]))
            self.before[task.name] = clock
            done = clock.copy()
            done[stream] += 1
            self.place[task.name] = (stream, done[stream])
            known[stream] = recorded[task.name] = done

    def ordered(self, first: Task, second: Task) -> bool:
        """Whether `first` is done before `second` starts."""
        stream, position = self.place[first.name]
        return self.before[second.name][stream] >= position

    def missing(self, first: Task, second: Task) -> str:
        """What there is between two tasks that are not ordered, and what would order them."""
        stream, position = self.place[first.name]
        own, own_position = self.place[second.name]
        launched = list(self.place)
        if launched.index(second.name) < launched.index(first.name):
            return (
                f"{second.name} is launched first, on stream {own}, and {first.name} after it, on "
                f"stream {stream}: {first.name} needs to be launched before {second.name}"
            )
        waits = f"waits for {', '.join(second.waits)}" if second.waits else "waits for nothing"
        n_seen = self.before[second.name][stream]
        seen = f"only the first {n_seen}" if n_seen else "none"
        return (
            f"{second.name} is task {own_position} of stream {own} and {waits}; {first.name} is "
            f"task {position} of stream {stream}, of which {seen} is sure to be done by then: "
            f"{second.name} needs to wait for {first.name}"
        )


def check_placement(graph: TaskGraph, forks: Collection[str], joins: Collection[str]) -> None:
    """Launching tasks are on streams 0..n-1, which fork from stream 0 and join it at the end."""
    used: set[int] = set()
    for task in graph.tasks:
        if not task.launches:
            if task.stream is not None or task.waits:
                message = f"{describe(task)} launches nothing but has a stream or waits"
                raise illegal(graph, message, task)
        elif task.stream is None:
            raise illegal(graph, f"{task.name} launches kernels without a stream", task)
        else:
            used.add(task.stream)
    if used != set(range(len(used))):
        raise ScheduleError(f"{graph.name} uses streams {used}, which are not 0, 1, 2, ...")
    _check_forks(graph, frozenset(forks))
    _check_joins(graph, frozenset(joins))


def _check_forks(graph: TaskGraph, forks: frozenset[str]) -> None:
    """Each stream's first task comes after the fork event, directly or through a wait."""
    started = {0}
    for task in graph.tasks:
        if task.stream is not None and task.stream not in started:
            if task.name not in forks and not task.waits:
                raise illegal(graph, f"{describe(task)} starts a stream that never forks", task)
            started.add(task.stream)


def _check_joins(graph: TaskGraph, joins: frozenset[str]) -> None:
    """Backwards from the joins: each stream's last task reaches stream 0."""
    last = {task.stream: task for task in graph.tasks if task.stream is not None}
    stream_of = {task.name: stream for stream, task in last.items()}
    joined = {0}
    for task in reversed(graph.tasks):
        if task.name in joins and task.stream is not None:
            joined.add(task.stream)
        if task.waits and task.stream in joined:
            joined.update(stream_of[name] for name in task.waits if name in stream_of)
    for stream in sorted(last.keys() - joined):
        message = f"stream {stream} ends with {last[stream].name} and is never joined"
        raise illegal(graph, message, last[stream])


def check_hazards(graph: TaskGraph, happened: HappensBefore) -> None:
    """Each two tasks that touch a storage which one of them writes are in program order."""
    writer: dict[str, Task] = {}
    readers: dict[str, list[Task]] = {}

    def require(first: Task, second: Task, storage: str, how: str) -> None:
        if not happened.ordered(first, second):
            raise _race(graph, happened, first, second, f"{storage}: {describe(second)} {how}")

    for task in sorted(graph.launching, key=lambda task: task.index):
        for storage in task.reads:
            if storage in writer:
                require(writer[storage], task, storage, "reads what is written by")
            readers.setdefault(storage, []).append(task)
        for storage in task.writes:
            for reader in readers.pop(storage, ()):
                if reader is not task:
                    require(reader, task, storage, "overwrites what is read by")
            if storage in writer:
                require(writer[storage], task, storage, "overwrites what is written by")
            writer[storage] = task


def _race(
    graph: TaskGraph, happened: HappensBefore, first: Task, second: Task, what: str
) -> ScheduleError:
    message = (
        f"race on storage {what} {describe(first)}, but does not happen after it\n"
        f"{happened.missing(first, second)}"
    )
    return illegal(graph, message, first, second)


def check_host_order(graph: TaskGraph) -> None:
    """Random draws and side effects are launched in program order."""
    for first, second in pairwise(task for task in graph.tasks if task.ordered):
        if first.index > second.index:
            message = f"{describe(second)} must be launched before {describe(first)}"
            raise illegal(graph, message, first, second)
