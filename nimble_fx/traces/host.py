"""What the host's threads did: the innermost operators and calls, and the time between them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nimble_fx.traces.events import Event


def leaves(events: Iterable[Event]) -> tuple[Event, ...]:
    """The operators and calls that no other is inside of, in the order of their beginning.

    An operator contains those that it calls, so that to count all would count time several times.
    What an operator does by itself between its calls is not lost: it stays as a gap between
    leaves, as all time of the host does that no event tells of. Calls of CUDA's are leaves always;
    one that another begins in ends there.

    Args:
        events: sorted by when they began, the longest first.
    """
    threads: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("op", "call"):
            threads[event.queue].append(event)
    found = [leaf for thread in threads.values() for leaf in _leaves(thread)]
    return tuple(sorted(found, key=lambda leaf: leaf.start_us))


def _leaves(thread: Sequence[Event]) -> Iterable[Event]:
    for event, following in zip(thread, (*thread[1:], None), strict=True):
        if following is None or following.start_us >= event.end_us:
            yield event
        elif event.kind == "call":
            yield replace(event, end_us=following.start_us)
