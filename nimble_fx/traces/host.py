"""The innermost operators and calls of the host's threads."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nimble_fx.traces.events import TraceEvent


def leaves(events: Iterable[TraceEvent]) -> tuple[TraceEvent, ...]:
    """The operators and calls that contain no others, by ascending start.

    An operator contains those that it calls, so counting all would count time several times. The
    time of an operator between its calls is kept as a gap between leaves, like all time of the host
    without events. CUDA calls are always leaves; one in which another starts ends there.

    Args:
        events: sorted by start, the longest first.
    """
    threads: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event.kind in ("op", "call"):
            threads[event.queue].append(event)
    found = [leaf for thread in threads.values() for leaf in _leaves(thread)]
    return tuple(sorted(found, key=lambda leaf: leaf.start_us))


def _leaves(thread: Sequence[TraceEvent]) -> Iterable[TraceEvent]:
    for event, following in zip(thread, (*thread[1:], None), strict=True):
        if following is None or following.start_us >= event.end_us:
            yield event
        elif event.kind == "call":
            yield replace(event, end_us=following.start_us)
