"""What a schedule takes: queues, waits, and a device that kernels share, as discrete events."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from math import inf

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.display import aligned


@dataclass(frozen=True, slots=True)
class Activity:
    """What keeps a queue busy for a while: a kernel, a copy, a call of the host.

    Attributes:
        name: what others wait for it by.
        queue: where it runs, one after another with the others there: a stream, a host thread.
        us: microseconds that it takes when it has its engine for itself.
        after: what it waits for, and the microseconds that pass from the end of that to its start.
        engine: what it shares with other queues, such as "gpu" or a link; None if nothing.
        share: of the engine's processors, from 0 to 1.
        bandwidth: of the engine's memory bandwidth, from 0 to 1.
    """

    name: str
    queue: str
    us: float
    after: tuple[tuple[str, float], ...] = ()
    engine: str | None = None
    share: float = 0.0
    bandwidth: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """When an activity ran, in microseconds from the beginning.

    Attributes:
        behind: the activity that it could not start before; None if it started at once.
    """

    name: str
    queue: str
    start_us: float
    end_us: float
    behind: str | None


@dataclass(frozen=True)
class Timeline:
    """A simulated run.

    Attributes:
        spans: when each activity ran, in the order in which they were given.
        bound_us: what no order and no number of queues goes below: the longest path of activities
            that wait for each other, or an engine's work, whichever is more.
    """

    spans: tuple[Span, ...]
    bound_us: float

    @cached_property
    def makespan_us(self) -> float:
        """When the last activity ends."""
        return max((span.end_us for span in self.spans), default=0.0)

    @cached_property
    def critical_path(self) -> tuple[str, ...]:
        """The activities that the end hung on, first to last: each could not start before the one
        before it, be it that it waited for it or stood behind it in a queue."""
        by_name = {span.name: span for span in self.spans}
        last = max(self.spans, key=lambda span: span.end_us, default=None)
        path: list[str] = []
        while last is not None:
            path.append(last.name)
            last = by_name.get(last.behind or "")
        return tuple(reversed(path))

    @cached_property
    def idle_us(self) -> Mapping[str, float]:
        """For each queue, the time in which it ran nothing, up to the end of the whole."""
        busy: dict[str, float] = defaultdict(float)
        for span in self.spans:
            busy[span.queue] += span.end_us - span.start_us
        return {queue: self.makespan_us - us for queue, us in busy.items()}

    def __str__(self) -> str:
        """One line an activity: what, on which queue, from when to when, and behind whom."""
        rows: list[Sequence[str]] = [("activity", "queue", "start us", "end us", "behind")]
        rows += [
            (s.name, s.queue, f"{s.start_us:.1f}", f"{s.end_us:.1f}", s.behind or "")
            for s in self.spans
        ]
        return "\n".join(aligned(rows))


def simulate(activities: Sequence[Activity]) -> Timeline:
    """Plays activities on their queues.

    Each queue runs its activities in the order given. Those that run on an engine at the same time
    share it: if together they ask for more processors or more bandwidth than there are, all of them
    slow down in proportion (processor sharing). Cost: O(n log n); 20,000 take 0.3 to 0.5 s.

    Raises:
        ScheduleError: an activity waits for one that there is not, or that waits for it in turn;
            two have one name; or a time or a share is not finite or below 0.
    """
    return _Run(activities).timeline()


@dataclass
class Engine:
    """Processors and bandwidth that the running activities share.

    They all run at one rate, so they end in the order of the work that each has left. Work is
    counted on a clock of its own that stands still with the rate: what starts at `clock` with `us`
    of work ends when it shows `clock + us`.
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
        """When the next activity ends, if none starts before."""
        if not self.ends:
            return inf
        return self.now + max(0.0, self.ends[0][0] - self.clock) * self._slowdown

    def start(self, i: int, activity: Activity, now: float) -> None:
        """Activity `i` begins."""
        self._move_on(now)
        heappush(self.ends, (self.clock + activity.us, i))
        self.share += activity.share
        self.bandwidth += activity.bandwidth

    def end(self, activities: Sequence[Activity], now: float) -> int:
        """The activity that ends."""
        self._move_on(now)
        _, i = heappop(self.ends)
        self.share -= activities[i].share
        self.bandwidth -= activities[i].bandwidth
        if not self.ends:  # rounding errors must not add up
            self.share = self.bandwidth = 0.0
        return i

    def _move_on(self, now: float) -> None:
        self.clock += (now - self.now) / self._slowdown
        self.now = now


class _Run:
    """One simulation. Activities are numbered as they were given."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        self._activities = activities
        self._later, self._n_missing = _successors(activities)
        self._earliest = [0.0] * len(activities)
        self._behind: list[int | None] = [None] * len(activities)
        self._starts: list[tuple[float, int]] = []
        self._ends: list[tuple[float, int]] = []
        self._engines: dict[str, Engine] = defaultdict(Engine)
        self._began, self._ended = [0.0] * len(activities), [inf] * len(activities)

    def timeline(self) -> Timeline:
        """Plays it to its end."""
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
        """What happens next: an activity ends, or one starts; False if nothing does."""
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
            if self._behind[j] is None or now + delay > self._earliest[j]:
                self._earliest[j], self._behind[j] = now + delay, i
            self._n_missing[j] -= 1
            if not self._n_missing[j]:
                heappush(self._starts, (self._earliest[j], j))

    def _span(self, i: int) -> Span:
        activity, behind = self._activities[i], self._behind[i]
        name = None if behind is None else self._activities[behind].name
        return Span(activity.name, activity.queue, self._began[i], self._ended[i], name)


_Later = list[list[tuple[int, float]]]


def _successors(
    activities: Sequence[Activity], hosts_only: bool = False
) -> tuple[_Later, list[int]]:
    """For each activity, who comes after it and how much later; and how many it comes after.

    Args:
        activities: all of them.
        hosts_only: leave out the orders of queues that are on an engine.
    """
    number = _numbers(activities)
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
                raise ScheduleError(f"{activity.name} waits for {name}, which there is not")
            later[number[name]].append((i, delay))
            n_missing[i] += 1
    return later, n_missing


def _numbers(activities: Sequence[Activity]) -> dict[str, int]:
    number: dict[str, int] = {}
    for i, activity in enumerate(activities):
        if number.setdefault(activity.name, i) != i:
            raise ScheduleError(f"there are two activities with the name {activity.name}")
        delays = (delay for _, delay in activity.after)
        figures = (activity.us, activity.share, activity.bandwidth, *delays)
        if not all(0 <= figure < inf for figure in figures):
            raise ScheduleError(f"a time or a share is not finite or below 0: {activity}")
    return number


def bound_us(activities: Sequence[Activity]) -> float:
    """What no order and no number of queues goes below, in microseconds.

    The longest path of activities that wait for each other, delays apart, or what an engine has to
    do, whichever is more. The queue of an activity does not count: another schedule may choose
    another. But what has no engine is no device's work, and keeps to its queue: a host thread.

    Raises:
        ScheduleError: activities wait for each other, or for one that there is not.
    """
    return max(_longest_path_us(activities), *_work_us(activities), 0.0)


def _work_us(activities: Iterable[Activity]) -> Iterable[float]:
    """For each engine, what its processors and its memory have to do."""
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
