"""A trace as activities: simulated as they are, they give the run that was recorded."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nimble_fx.errors import FileError, OptionError
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.traces.events import Event, read_events
from nimble_fx.traces.host import leaves
from nimble_fx.traces.order import Order, order

BEGIN = "begin"
"""The activity, of no length, that the first ones of all threads come after."""


@dataclass(frozen=True)
class Recorded:
    """A recorded run.

    Attributes:
        activities: the host's innermost operators and calls, on a queue for each thread, and the
            device's kernels, copies and memsets, on a queue for each stream. The latter have the
            engine "gpu0", for the first device, and a share of 0: where they ran side by side,
            the recorded times already have what that cost them.
        span_us: what the run took, from the beginning of the first to the end of the last.
    """

    activities: tuple[Activity, ...]
    span_us: float


def read(path: str | os.PathLike[str], *, within: str | None = None, instance: int = 0) -> Recorded:
    """The run in a trace file of torch.profiler.

    An activity starts a recorded gap behind whichever it waited for longest, and not before the
    others that it had to wait for. On the host that is what came before it on its thread, or the
    device where it synchronized; on the device its launch (its call counts up to there, the rest
    of it as a gap), what came before it on its stream, and events. What one thread waits for from
    another is not in a trace: there the recorded gaps stay. After Daydream (Zhu et al., USENIX
    ATC 2020). Cost: 100,000 events take a few seconds.

    Args:
        path: the file, packed by gzip or not.
        within: only what the host began within a mark of this name (`torch.profiler.
            record_function`, "ProfilerStep#3"), and what that launched; None for all.
        instance: which mark of that name, 0 for the first.

    Raises:
        FileError: it cannot be read, is no trace, or has no activity of a device.
        OptionError: there is no such mark; the message names those that there are.
    """
    events = read_events(path)
    if not any(event.kind == "device" for event in events):
        raise FileError(
            f"{path}: it has no kernels, copies or memsets: record it on a GPU, with "
            "torch.profiler.ProfilerActivity.CUDA among the activities"
        )
    hosts = leaves(events)
    if within is None:
        ordered = order(events, hosts)
        return _Writer([*hosts, *ordered.loose], ordered).recorded()
    mark = _mark(events, within, instance)
    hosts = tuple(leaf for leaf in hosts if mark.start_us <= leaf.start_us <= mark.end_us)
    return _Writer(hosts, order(events, hosts)).recorded()


def _mark(events: Iterable[Event], name: str, instance: int) -> Event:
    marks = [event for event in events if event.kind == "annotation"]
    found = [mark for mark in marks if mark.name == name]
    if not 0 <= instance < len(found):
        counts = Counter(mark.name for mark in marks)
        known = ", ".join(f"{each!r} ({n} times)" for each, n in counts.items()) or "none"
        raise OptionError(f"within={name!r}, instance={instance}: the trace's marks are {known}")
    return found[instance]


class _Writer:
    """Writes activities, the host's in the order of their beginning, each call's kernels behind."""

    def __init__(self, roots: Sequence[Event], ordered: Order) -> None:
        self._order = ordered
        self._roots = sorted(roots, key=lambda event: event.start_us)
        everything = [e for root in self._roots for e in (root, *self._launched(root))]
        self._names = _names(everything)
        self._begin = min((e.start_us for e in everything), default=0.0)
        self._end = max((e.end_us for e in everything), default=0.0)
        self._last: dict[str, Event] = {}

    def recorded(self) -> Recorded:
        made = [Activity(BEGIN, BEGIN, 0.0)]
        for root in self._roots:
            made.append(self._device(root, None) if root.kind == "device" else self._host(root))
            made += [self._device(event, root) for event in self._launched(root)]
        return Recorded(tuple(made), self._end - self._begin)

    def _launched(self, call: Event) -> Sequence[Event]:
        return self._order.launched.get(call, ())

    def _end_us(self, event: Event) -> float:
        """When what comes after an event could begin: for a call, when what it launched began."""
        starts = (each.start_us for each in self._launched(event))
        return max(event.start_us, min((event.end_us, *starts)))

    def _host(self, event: Event) -> Activity:
        before = self._last.get(event.queue)
        gap = (BEGIN, event.start_us - self._begin) if before is None else self._gap(before, event)
        self._last[event.queue] = event
        waits = self._order.waits.get(event, ())
        start = max((event.start_us, *(each.end_us for each in waits)))
        us = max(0.0, self._end_us(event) - start)
        after = (gap, *((self._names[each], 0.0) for each in waits))
        return Activity(self._names[event], event.queue, us, after)

    def _device(self, event: Event, call: Event | None) -> Activity:
        waits = list(self._order.waits.get(event, ()))
        before = [*waits, call] if call is not None else waits
        latest = max(before, key=self._end_us, default=None)
        after = [(BEGIN, event.start_us - self._begin)] if latest is None else []
        for each in before:
            after.append(self._gap(each, event) if each is latest else (self._names[each], 0.0))
        return Activity(self._names[event], event.queue, event.us, tuple(after), _engine(event))

    def _gap(self, before: Event, event: Event) -> tuple[str, float]:
        return self._names[before], max(0.0, event.start_us - self._end_us(before))


def _engine(event: Event) -> str:
    return f"gpu{event.args.get('device', 0)}"


def _names(events: Iterable[Event]) -> Mapping[Event, str]:
    """Each event's name with the number that its trace knows it by, told apart where it repeats."""
    seen: Counter[str] = Counter()
    names = {}
    for event in events:
        number = event.correlation
        name = f"{event.name} #{event.number('External id') if number is None else number}"
        seen[name] += 1
        names[event] = f"{name}.{seen[name]}" if seen[name] > 1 else name
    return names
