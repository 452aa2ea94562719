"""Turns a trace into activities whose simulation reproduces the recorded run."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nimble_fx.errors import FileError, OptionError
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.traces.events import TraceEvent, read_events
from nimble_fx.traces.host import leaves
from nimble_fx.traces.order import Order, order

BEGIN = "begin"
"""The activity of length 0 that the first ones of all threads wait for."""


@dataclass(frozen=True)
class Recorded:
    """A recorded run.

    Attributes:
        activities: the host's innermost operators and calls, on a queue for each thread, and the
            device's kernels, copies and memsets, on a queue for each stream. The latter have the
            engine "gpu0", for the first device, and a share of 0: the recorded times of concurrent
            kernels already include their slowdown.
        span_us: the time from the first start to the last end, in microseconds.
    """

    activities: tuple[Activity, ...]
    span_us: float


def read(path: str | os.PathLike[str], *, within: str | None = None, instance: int = 0) -> Recorded:
    """The run in a trace file of torch.profiler.

    An activity starts after all that it waited for, and a recorded gap after the last of these. On
    the host, it waited for the activity before it on its thread, or for the device where it
    synchronized; on the device, for its launch (its call ends there, the rest of it is a gap), the
    activity before it on its stream, and events. Waits between threads are not in a trace, so their
    recorded gaps stay. After Daydream (Zhu et al., USENIX ATC 2020). Cost: 100,000 events take a
    few seconds.

    Args:
        path: the file, gzipped or not.
        within: read only what the host started within an annotation of this name
            (`torch.profiler.record_function`, "ProfilerStep#3"), and what that launched; None for
            all.
        instance: the index of the annotation among those of that name.

    Raises:
        FileError: it cannot be read, is not a trace, or has no activity of a device.
        OptionError: there is no such annotation; the message lists the existing ones. Or
            `instance` is not a whole number, or there is one without `within`.
    """
    if type(instance) is not int or (instance and within is None):
        raise OptionError(f"instance={instance!r:.99}: it takes an index, together with `within`")
    events = read_events(path)
    if not any(event.kind == "device" for event in events):
        raise FileError(
            f"{path}: it has no kernels, copies or memsets: record it on a GPU, with "
            "torch.profiler.ProfilerActivity.CUDA among the activities"
        )
    hosts = leaves(events)
    if within is None:
        ordered = order(events, hosts)
        return _RunBuilder([*hosts, *ordered.loose], ordered).build()
    mark = _mark(events, within, instance)
    hosts = tuple(leaf for leaf in hosts if mark.start_us <= leaf.start_us <= mark.end_us)
    return _RunBuilder(hosts, order(events, hosts)).build()


def _mark(events: Iterable[TraceEvent], name: str, instance: int) -> TraceEvent:
    marks = [event for event in events if event.kind == "annotation"]
    found = [mark for mark in marks if mark.name == name]
    if not 0 <= instance < len(found):
        counts = Counter(mark.name for mark in marks)
        known = ", ".join(f"{each!r} ({n} times)" for each, n in counts.items()) or "none"
        raise OptionError(f"within={name!r}, instance={instance}: the trace's marks are {known}")
    return found[instance]


class _RunBuilder:
    """Builds activities: the host's by ascending start, each call followed by its kernels."""

    def __init__(self, roots: Sequence[TraceEvent], ordered: Order) -> None:
        self._order = ordered
        self._roots = sorted(roots, key=lambda event: event.start_us)
        everything = [e for root in self._roots for e in (root, *self._launched(root))]
        self._names = _names(everything)
        self._begin = min((e.start_us for e in everything), default=0.0)
        self._end = max((e.end_us for e in everything), default=0.0)
        self._last: dict[str, TraceEvent] = {}

    def build(self) -> Recorded:
        built = [Activity(BEGIN, BEGIN, 0.0)]
        for root in self._roots:
            built.append(self._device(root, None) if root.kind == "device" else self._host(root))
            built += [self._device(event, root) for event in self._launched(root)]
        return Recorded(tuple(built), self._end - self._begin)

    def _launched(self, call: TraceEvent) -> Sequence[TraceEvent]:
        return self._order.launched.get(call, ())

    def _end_us(self, event: TraceEvent) -> float:
        """The earliest start of a successor: the end, or for a call the start of its kernels."""
        starts = (each.start_us for each in self._launched(event))
        return max(event.start_us, min((event.end_us, *starts)))

    def _host(self, event: TraceEvent) -> Activity:
        before = self._last.get(event.queue)
        gap = (BEGIN, event.start_us - self._begin) if before is None else self._gap(before, event)
        self._last[event.queue] = event
        waits = self._order.waits.get(event, ())
        start = max((event.start_us, *(each.end_us for each in waits)))
        us = max(0.0, self._end_us(event) - start)
        after = (gap, *((self._names[each], 0.0) for each in waits))
        return Activity(self._names[event], event.queue, us, after)

    def _device(self, event: TraceEvent, call: TraceEvent | None) -> Activity:
        waits = list(self._order.waits.get(event, ()))
        before = [*waits, call] if call is not None else waits
        latest = max(before, key=self._end_us, default=None)
        after = [(BEGIN, event.start_us - self._begin)] if latest is None else []
        for each in before:
            after.append(self._gap(each, event) if each is latest else (self._names[each], 0.0))
        return Activity(self._names[event], event.queue, event.us, tuple(after), _engine(event))

    def _gap(self, before: TraceEvent, event: TraceEvent) -> tuple[str, float]:
        return self._names[before], max(0.0, event.start_us - self._end_us(before))


def _engine(event: TraceEvent) -> str:
    return f"gpu{event.args.get('device', 0)}"


def _names(events: Iterable[TraceEvent]) -> Mapping[TraceEvent, str]:
    """A unique name for each event: its name, its id in the trace, and a count if that repeats."""
    seen: Counter[str] = Counter()
    names = {}
    for event in events:
        number = event.correlation
        name = f"{event.name} #{event.number('External id') if number is None else number}"
        seen[name] += 1
        names[event] = f"{name}.{seen[name]}" if seen[name] > 1 else name
    return names
