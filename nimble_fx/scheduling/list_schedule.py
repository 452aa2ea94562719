"""List scheduling by upward rank, on the streams of a device that kernels share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from nimble_fx.cost import NO_KERNEL, Cost
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import earlier_tasks, upward_rank
from nimble_fx.simulation.discrete_event import Activity, Engine


@dataclass(frozen=True)
class Plan:
    """A schedule and its predicted makespan.

    Attributes:
        order: the launching and ordered tasks, in launch order.
        streams: the stream of each launching task: 0, 1, ...
        end_us: when the last task has ended and stream 0 has waited for it, in microseconds.
    """

    order: tuple[str, ...]
    streams: Mapping[str, int]
    end_us: float

    @cached_property
    def n_streams(self) -> int:
        """The number of streams that it uses."""
        return len(set(self.streams.values()))


class Workload:
    """The tasks to schedule, numbered in a topological order.

    Attributes:
        names: the name of each launching or ordered task.
        launches: whether each runs anything on the device.
        kernels: its activity on the device.
        after: the tasks that must end before it starts.
        successors: the tasks that start after it ends: those whose `after` has it.
        launch_successors: the tasks that are launched after it is, whenever it ends: random draws
            and side effects keep program order.
        n_predecessors: the number of tasks that must end or be launched before it.
        urgency: its upward rank: the microseconds of the longest path that begins with it.
        event_us: the delay of a wait for a task of another stream.
    """

    def __init__(self, graph: TaskGraph, costs: Mapping[str, Cost], event_us: float) -> None:
        earlier = earlier_tasks(graph)
        number = {name: i for i, name in enumerate(earlier)}
        ahead = upward_rank(earlier, {name: cost.us for name, cost in costs.items()})
        self.names = tuple(earlier)
        self.launches = [graph.by_name[name].launches for name in earlier]
        self.kernels = [_kernel(name, costs.get(name, NO_KERNEL)) for name in earlier]
        self.after = [tuple(number[n] for n in graph.by_name[name].after) for name in earlier]
        self.successors: list[list[int]] = [[] for _ in earlier]
        self.launch_successors: list[list[int]] = [[] for _ in earlier]
        self.n_predecessors = [0] * len(earlier)
        self.urgency = [ahead[name] for name in earlier]
        self.event_us = event_us
        for i, name in enumerate(earlier):
            waits = set(self.after[i])
            for j in map(number.__getitem__, earlier[name]):
                (self.successors if j in waits else self.launch_successors)[j].append(i)
                self.n_predecessors[i] += 1


def _kernel(name: str, cost: Cost) -> Activity:
    return Activity(name, "", cost.us, (), "gpu", cost.share, cost.bandwidth)


def serial_schedule(work: Workload) -> Plan:
    """The plan with all tasks on one stream, in program order. Cost: O(tasks)."""
    streams = {
        name: 0 for name, launches in zip(work.names, work.launches, strict=True) if launches
    }
    return Plan(work.names, streams, sum(kernel.us for kernel in work.kernels))


def list_schedule(work: Workload, n_streams: int) -> Plan:
    """A plan on at most `n_streams` streams, by list scheduling on a simulated device.

    Whenever a task ends, ready tasks are launched, the highest upward rank first, while a stream is
    idle. A task goes to the stream of the predecessor that ended last, where it starts soonest; if
    that is busy, to the stream of another predecessor, which saves a wait; else to the stream that
    was busy last. Kernels that run at the same time slow each other down as in `simulate`: the
    plan's times are those of a simulated run, unless a task was delayed because another had to be
    launched before it, without data between them (random draws, side effects, the sizes of its
    results); it then starts sooner than planned. Streams 0..n-1 are used; if n is less
    than `n_streams`, more streams would not change the plan.

    Cost: O((tasks + edges) log tasks), about 10 microseconds a task.
    Source: Graham, "Bounds for certain multiprocessing anomalies", 1966, with the priorities of
    HEFT (see `upward_rank`).
    """
    return _ListScheduler(work, n_streams).plan()


class _ListScheduler:
    """A partial schedule.

    `_idle` has the idle streams, the one that was busy last first, so that a new stream is used
    only if no other is idle.
    """

    def __init__(self, work: Workload, n_streams: int) -> None:
        self._work = work
        self._missing = list(work.n_predecessors)
        self._ready: list[tuple[float, int]] = []
        self._starts: list[tuple[float, int]] = []
        self._engine = Engine()
        self._idle: dict[int, None] = dict.fromkeys(range(n_streams))
        self._order: list[str] = []
        self._stream = [0] * len(work.names)
        self._end_us = [0.0] * len(work.names)

    def plan(self) -> Plan:
        self._make_ready(i for i, n in enumerate(self._missing) if not n)
        self._launch_ready(0.0)
        while self._starts or self._engine.ends:
            self._step()
        work = self._work
        launching = [i for i, launches in enumerate(work.launches) if launches]
        ends = (self._end_us[i] + (work.event_us if self._stream[i] else 0.0) for i in launching)
        streams = {work.names[i]: self._stream[i] for i in launching}
        return Plan(tuple(self._order), streams, max(ends, default=0.0))

    def _step(self) -> None:
        """Processes the next event: a task starts or ends."""
        end = self._engine.next_end()
        if self._starts and self._starts[0][0] < end:
            start, i = heappop(self._starts)
            self._engine.start(i, self._work.kernels[i], start)
            return
        i = self._engine.end(self._work.kernels, end)
        self._end_us[i] = end
        self._idle = {self._stream[i]: None, **self._idle}
        self._release(self._work.successors[i])
        self._launch_ready(end)

    def _launch_ready(self, now: float) -> None:
        while self._ready and self._idle:
            _, i = heappop(self._ready)
            s = self._best_stream(i)
            del self._idle[s]
            self._stream[i] = s
            heappush(self._starts, (max(now, self._start_us(i, s)), i))
            self._launched(i)

    def _best_stream(self, i: int) -> int:
        """The idle stream where task `i` starts soonest; among equals, one that saves a wait."""
        last_first = sorted(self._work.after[i], key=lambda j: -self._end_us[j])
        idle = (self._stream[j] for j in last_first if self._stream[j] in self._idle)
        return next(idle, next(iter(self._idle)))

    def _start_us(self, i: int, s: int) -> float:
        """The earliest start of task `i` on a stream, by the ends of its predecessors."""
        event = self._work.event_us
        forked = event if s else 0.0
        ends = (self._end_us[j] + event * (self._stream[j] != s) for j in self._work.after[i])
        return max(forked, *ends, 0.0)

    def _launched(self, i: int) -> None:
        self._order.append(self._work.names[i])
        self._release(self._work.launch_successors[i])

    def _release(self, later: Iterable[int]) -> None:
        """Counts one predecessor of each task of `later` as done."""
        ready = []
        for j in later:
            self._missing[j] -= 1
            if not self._missing[j]:
                ready.append(j)
        self._make_ready(ready)

    def _make_ready(self, tasks: Iterable[int]) -> None:
        """Makes tasks ready to launch; those that launch nothing are done at once."""
        for i in tasks:
            if self._work.launches[i]:
                heappush(self._ready, (-self._work.urgency[i], i))
            else:
                self._launched(i)
