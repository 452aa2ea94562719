"""A discrete-event simulation of activities on queues, with a device that kernels share."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from math import inf

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.display import aligned


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that occupies a queue for some time: a kernel, a copy, a call of the host.

    Attributes:
        name: its unique name.
        queue: the stream or host thread that runs it; activities of one queue run one by one.
        us: its duration in microseconds when it has its engine to itself.
        after: the activities that it waits for, each with the least delay in microseconds from
            that one's end to its start.
        engine: the resource that it shares with other queues, such as "gpu" or a link; None if
            there is none.
        share: the fraction of the engine's processors that it uses, from 0 to 1.
        bandwidth: the fraction of the engine's memory bandwidth that it uses, from 0 to 1.
        parts: the names of the activities that are fused to it, its own included; empty if none.
    """

    name: str
    queue: str
    us: float
    after: tuple[tuple[str, float], ...] = ()
    engine: str | None = None
    share: float = 0.0
    bandwidth: float = 0.0
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """When an activity ran, in microseconds from the start of the simulation.

    Attributes:
        blocked_by: the last activity whose end it waited for; None if it started at once.
    """

    name: str
    queue: str
    start_us: float
    end_us: float
    blocked_by: str | None


@dataclass(frozen=True)
class Timeline:
    """A simulated run.

    Attributes:
        spans: when each activity ran, in the order of the activities.
        bound_us: a lower bound of the makespan for any order and number of queues: the longest
            path of activities that wait for each other, or an engine's work, whichever is more.
    """

    spans: tuple[Span, ...]
    bound_us: float

    @cached_property
    def makespan_us(self) -> float:
        """When the last activity ends."""
        return max((span.end_us for span in self.spans), default=0.0)

    @cached_property
    def critical_path(self) -> tuple[str, ...]:
        """The chain of activities that determined the makespan, first to last.

        Each started when the one before it ended: it waited for it, or followed it in a queue.
        """
        by_name = {span.name: span for span in self.spans}
        last = max(self.spans, key=lambda span: span.end_us, default=None)
        path: list[str] = []
        while last is not None:
            path.append(last.name)
            last = by_name.get(last.blocked_by or "")
        return tuple(reversed(path))

    def __str__(self) -> str:
        """One line an activity: its name, queue, start, end, and the one that it waited for."""
        rows: list[Sequence[str]] = [("activity", "queue", "start us", "end us", "blocked by")]
        rows += [
            (s.name, s.queue, f"{s.start_us:.1f}", f"{s.end_us:.1f}", s.blocked_by or "")
            for s in self.spans
        ]
        return "\n".join(aligned(rows))


def simulate(activities: Sequence[Activity]) -> Timeline:
    """A simulated run of activities on their queues.

    Each queue runs its activities in the order given. Activities that run on an engine at the same
    time share it: if together they need more processors or more bandwidth than it has, all of them
    slow down in proportion (processor sharing). Cost: O(n log n); 20,000 take 0.3 to 0.5 s.

    Raises:
        ScheduleError: an activity waits for one that does not exist, or activities wait for each
            other; two have one name; or a time or a share is not finite or below 0.
    """
    return _Simulation(activities).timeline()


@dataclass
class Engine:
    """Processors and bandwidth that the running activities share.

    They all run at one rate, so they end in the order of their remaining work. `clock` is virtual
    time, which advances at that rate: an activity that starts at `clock` with `us` of work ends at
    `clock + us`.
    """

    now: float = 0.0
    clock: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)
    share: float = 0.0
    bandwidth: float = 0.0

    @property
    def _slowdown(self) -> float:
        return max(1.0, self.share, self.bandwidth)

    def next_end(self) -> float:
        """The time at which the next activity ends, if none starts before."""
        if not self.ends:
            return inf
        return self.now + max(0.0, self.ends[0][0] - self.clock) * self._slowdown

    def start(self, i: int, activity: Activity, now: float) -> None:
        """Starts activity `i`."""
        self._advance(now)
        heappush(self.ends, (self.clock + activity.us, i))
        self.share += activity.share
        self.bandwidth += activity.bandwidth

    def end(self, activities: Sequence[Activity], now: float) -> int:
        """Ends the next activity; returns its number."""
        self._advance(now)
        _, i = heappop(self.ends)
        self.share -= activities[i].share
        self.bandwidth -= activities[i].bandwidth
        if not self.ends:  # rounding errors must not add up
            self.share = self.bandwidth = 0.0
        return i

    def _advance(self, now: float) -> None:
        self.clock += (now - self.now) / self._slowdown
        self.now = now


class _Simulation:
    """One simulation. Activities are numbered in the order given."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        self._activities = activities
        self._later, self._n_missing = _successors(activities)
        self._earliest = [0.0] * len(activities)
        self._blocked_by: list[int | None] = [None] * len(activities)
        self._starts: list[tuple[float, int]] = []
        self._ends: list[tuple[float, int]] = []
        self._engines: dict[str, Engine] = defaultdict(Engine)
        self._began, self._ended = [0.0] * len(activities), [inf] * len(activities)

    def timeline(self) -> Timeline:
        """Runs the simulation to its end."""
        for i, n_missing in enumerate(self._n_missing):
            if not n_missing:
                heappush(self._starts, (0.0, i))
        while self._step():
            pass
        stuck = [a.name for a, end in zip(self._activities, self._ended, strict=True) if end == inf]
        if stuck:
            shown = ", ".join(stuck[:3])
            raise ScheduleError(f"{len(stuck)} activities wait for each other, among them {shown}")
        return Timeline(
            tuple(map(self._span, range(len(self._activities)))), bound_us(self._activities)
        )

    def _step(self) -> bool:
        """Processes the next event: an activity ends or starts. Returns whether there was one."""
        start = self._starts[0][0] if self._starts else inf
        end = self._ends[0][0] if self._ends else inf
        engine, engine_end = None, inf
        for each in self._engines.values():
            if (at := each.next_end()) < engine_end:
                engine, engine_end = each, at
        if engine is not None and engine_end <= min(start, end):
            self._finish(engine.end(self._activities, engine_end), engine_end)
        elif end <= start and self._ends:
            now, i = heappop(self._ends)
            self._finish(i, now)
        elif self._starts:
            now, i = heappop(self._starts)
            self._start(i, now)
        else:
            return False
        return True

    def _start(self, i: int, now: float) -> None:
        activity = self._activities[i]
        self._began[i] = now
        if activity.engine is None:
            heappush(self._ends, (now + activity.us, i))
        else:
            self._engines[activity.engine].start(i, activity, now)

    def _finish(self, i: int, now: float) -> None:
        self._ended[i] = now
        for j, delay in self._later[i]:
            if self._blocked_by[j] is None or now + delay > self._earliest[j]:
                self._earliest[j], self._blocked_by[j] = now + delay, i
            self._n_missing[j] -= 1
            if not self._n_missing[j]:
                heappush(self._starts, (self._earliest[j], j))

    def _span(self, i: int) -> Span:
        activity, blocked_by = self._activities[i], self._blocked_by[i]
        name = None if blocked_by is None else self._activities[blocked_by].name
        return Span(activity.name, activity.queue, self._began[i], self._ended[i], name)


_Later = list[list[tuple[int, float]]]


def _successors(
    activities: Sequence[Activity], hosts_only: bool = False
) -> tuple[_Later, list[int]]:
    """For each activity, its successors with their delays; and its number of predecessors.

    Args:
        activities: all of them.
        hosts_only: leave out the queue order of activities that have an engine.
    """
    _check(activities)
    number = {activity.name: i for i, activity in enumerate(activities)}
    later: _Later = [[] for _ in activities]
    n_missing = [0] * len(activities)
    last: dict[str, int] = {}
    for i, activity in enumerate(activities):
        if activity.queue in last and not (hosts_only and activity.engine is not None):
            later[last[activity.queue]].append((i, 0.0))
            n_missing[i] += 1
        last[activity.queue] = i
        for name, delay in activity.after:
            if name not in number:
                raise ScheduleError(f"{activity.name} waits for {name}, which does not exist")
            later[number[name]].append((i, delay))
            n_missing[i] += 1
    return later, n_missing


def _check(activities: Iterable[Activity]) -> None:
    """Checks names and figures.

    Raises:
        ScheduleError: two activities have one name, or a figure is negative or not finite.
    """
    names = set[str]()
    for activity in activities:
        if activity.name in names:
            raise ScheduleError(f"there are two activities with the name {activity.name}")
        names.add(activity.name)
        delays = (delay for _, delay in activity.after)
        figures = (activity.us, activity.share, activity.bandwidth, *delays)
        if not all(0 <= figure < inf for figure in figures):
            raise ScheduleError(f"a time or a share is not finite or below 0: {activity}")


def bound_us(activities: Sequence[Activity]) -> float:
    """A lower bound of the makespan for any order and number of queues, in microseconds.

    The longest path of activities that wait for each other, without delays, or the work of an
    engine, whichever is more. Queue order does not count, because another schedule may choose
    another queue; it does for activities without an engine, which stay on their host thread.

    Raises:
        ScheduleError: activities wait for each other, or for one that does not exist.
    """
    return max(_longest_path_us(activities), *_work_us(activities), 0.0)


def _work_us(activities: Iterable[Activity]) -> Iterable[float]:
    """The microseconds of work of each engine's processors and of its memory."""
    work: dict[tuple[str, str], float] = defaultdict(float)
    for activity in activities:
        if activity.engine is not None:
            work[activity.engine, "processors"] += activity.us * activity.share
            work[activity.engine, "memory"] += activity.us * activity.bandwidth
    return work.values()


def _longest_path_us(activities: Sequence[Activity]) -> float:
    later, _ = _successors(activities, hosts_only=True)
    before: dict[int, list[int]] = {i: [] for i in range(len(activities))}
    for i, successors in enumerate(later):
        for j, _ in successors:
            before[j].append(i)
    ends: dict[int, float] = {}
    try:
        for i in TopologicalSorter(before).static_order():
            ends[i] = max((ends[j] for j in before[i]), default=0.0) + activities[i].us
    except CycleError as error:
        names = ", ".join(activities[i].name for i in error.args[1][:3])
        raise ScheduleError(f"activities wait for each other, among them {names}") from error
    return max(ends.values(), default=0.0)
