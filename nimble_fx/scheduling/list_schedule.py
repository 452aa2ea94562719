"""List scheduling: the most urgent task first, on streams of a device that kernels share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from nimble_fx.cost import Cost
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import earlier_tasks, us_ahead
from nimble_fx.simulation.discrete_event import Activity, Engine

_NOTHING = Cost(us=0.0, nbytes=0.0, flops=0.0, share=0.0, bandwidth=0.0)


@dataclass(frozen=True)
class Plan:
    """A schedule, and when it should end.

    Attributes:
        order: what is launched or ordered, in launch order.
        streams: of each launching task: 0, 1, ...
        end_us: when the last task is done and stream 0 knows it, in microseconds.
    """

    order: tuple[str, ...]
    streams: Mapping[str, int]
    end_us: float

    @cached_property
    def n_streams(self) -> int:
        """How many streams it uses."""
        return len(set(self.streams.values()))


class Workload:
    """What is to be scheduled: tasks by number, in a topological order.

    Attributes:
        names: of what launches or is ordered.
        launches: whether each does anything on the device.
        kernels: what it does there.
        after: those that must have ended before it begins.
        ends_before: those that it is in `after` of.
        launched_before: those that the host must launch later, whenever it ends: random draws and
            side effects keep program order.
        n_before: how many such lists of others it is in.
        urgency: microseconds of the longest path that begins with it.
        event_us: how much later a task may start behind one of another stream than of its own.
    """

    def __init__(self, graph: TaskGraph, costs: Mapping[str, Cost], event_us: float) -> None:
        earlier = earlier_tasks(graph)
        number = {name: i for i, name in enumerate(earlier)}
        ahead = us_ahead(earlier, {name: cost.us for name, cost in costs.items()})
        self.names = tuple(earlier)
        self.launches = [graph.by_name[name].launches for name in earlier]
        self.kernels = [_kernel(name, costs.get(name, _NOTHING)) for name in earlier]
        self.after = [tuple(number[n] for n in graph.by_name[name].after) for name in earlier]
        self.ends_before: list[list[int]] = [[] for _ in earlier]
        self.launched_before: list[list[int]] = [[] for _ in earlier]
        self.n_before = [0] * len(earlier)
        self.urgency = [ahead[name] for name in earlier]
        self.event_us = event_us
        for i, name in enumerate(earlier):
            for j in {number[before] for before in earlier[name]}:
                (self.ends_before if j in self.after[i] else self.launched_before)[j].append(i)
                self.n_before[i] += 1


def _kernel(name: str, cost: Cost) -> Activity:
    return Activity(name, "", cost.us, (), "gpu", cost.share, cost.bandwidth)


def serial_schedule(work: Workload) -> Plan:
    """All tasks on one stream, in program order. Cost: O(tasks)."""
    streams = {
        name: 0 for name, launches in zip(work.names, work.launches, strict=True) if launches
    }
    return Plan(work.names, streams, sum(kernel.us for kernel in work.kernels))


def list_schedule(work: Workload, n_streams: int) -> Plan:
    """A schedule on at most so many streams, by list scheduling on a simulated device.

    Whenever a task ends, what is ready is launched, the most urgent first, while there is an idle
    stream. It goes to the stream of the one that it waited for longest, where it starts soonest; if
    that is busy, to that of another that it waits for, which saves a wait; else to the stream that
    was busy last. Kernels that run at the same time slow each other down as in `simulate`:
    the plan's times are those of a simulated run, unless the order of random draws or of side
    effects held a task back, which then starts sooner than planned. Streams 0..n-1 are used; if
    there were more to choose from than that, still more would change nothing.

    Cost: O((tasks + edges) log tasks), about 10 microseconds a task.
    Source: Graham, "Bounds for certain multiprocessing anomalies", 1966, with the priorities of
    HEFT (see `us_ahead`).
    """
    return _Run(work, n_streams).plan()


class _Run:
    """A schedule in the making.

    `_idle` has the streams, the one that was busy last first, so that none is opened while another
    is idle.
    """

    def __init__(self, work: Workload, n_streams: int) -> None:
        self._work = work
        self._missing = list(work.n_before)
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
        """A task starts or ends, whichever is next."""
        end = self._engine.next_end()
        if self._starts and self._starts[0][0] < end:
            start, i = heappop(self._starts)
            self._engine.start(i, self._work.kernels[i], start)
            return
        i = self._engine.end(self._work.kernels, end)
        self._end_us[i] = end
        self._idle = {self._stream[i]: None, **self._idle}
        self._release(self._work.ends_before[i])
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
        """The idle stream where it starts soonest; of several, one that saves a wait."""
        last_first = sorted(self._work.after[i], key=lambda j: -self._end_us[j])
        idle = (self._stream[j] for j in last_first if self._stream[j] in self._idle)
        return next(idle, next(iter(self._idle)))

    def _start_us(self, i: int, s: int) -> float:
        """When it could start on a stream, as far as those that it waits for have ended."""
        event = self._work.event_us
        forked = event if s else 0.0
        ends = (self._end_us[j] + event * (self._stream[j] != s) for j in self._work.after[i])
        return max(forked, *ends, 0.0)

    def _launched(self, i: int) -> None:
        self._order.append(self._work.names[i])
        self._release(self._work.launched_before[i])

    def _release(self, later: Iterable[int]) -> None:
        """One of those that each of `later` comes after has ended, or has been launched."""
        ready = []
        for j in later:
            self._missing[j] -= 1
            if not self._missing[j]:
                ready.append(j)
        self._make_ready(ready)

    def _make_ready(self, tasks: Iterable[int]) -> None:
        """The host may launch them; what launches nothing it is done with at once."""
        for i in tasks:
            if self._work.launches[i]:
                heappush(self._ready, (-self._work.urgency[i], i))
            else:
                self._launched(i)
