"""What kernels and the host's calls waited for: streams, events and synchronization, as in CUDA."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from nimble_fx.traces.events import Event, stream

_BLOCKS_ON_ALL = ("cudaDeviceSynchronize", "cuCtxSynchronize")
_BLOCKS_ON_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize")
_BLOCKS_ON_EVENT = ("cudaEventSynchronize", "cuEventSynchronize")
"""Calls that return when the device has come so far. cudaEventQuery does not wait."""

_RECORDS = ("cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord")
_STREAM_WAITS = "Stream Wait Event"


@dataclass(frozen=True)
class Order:
    """What an event waited for besides what is before it on its own queue.

    Attributes:
        launched: by call, the activities of the device that it launched.
        waits: by call or activity of the device, the latter's activities that had to end first.
        loose: activities of the device whose call is not in the trace.
    """

    launched: Mapping[Event, Sequence[Event]]
    waits: Mapping[Event, Sequence[Event]]
    loose: Sequence[Event]


def order(events: Sequence[Event], leaves: Iterable[Event]) -> Order:
    """Plays the host's calls in the order of their beginning, and keeps CUDA's books.

    Args:
        events: all, sorted by when they began.
        leaves: the calls and operators to play, sorted likewise.
    """
    on_device: dict[int | None, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "device":
            on_device[event.correlation].append(event)
    loose = on_device.pop(None, [])
    syncs = {e.correlation: e for e in events if e.kind == "sync"}
    books = _Books(_recorded_on(syncs.values()))
    launched: dict[Event, Sequence[Event]] = {}
    for leaf in leaves:
        if leaf.kind == "call" and leaf.correlation is not None:
            launched[leaf] = on_device.pop(leaf.correlation, ())
            books.play(leaf, syncs.get(leaf.correlation), launched[leaf])
    return Order(launched, books.waits, (*loose, *chain.from_iterable(on_device.values())))


def _recorded_on(syncs: Iterable[Event]) -> Mapping[int | None, str]:
    """The stream that an event was recorded on, by the correlation of the call that did it."""
    found: dict[int | None, str] = {}
    for sync in syncs:
        record = sync.number("wait_on_cuda_event_record_corr_id")
        number = sync.number("wait_on_stream")
        if record is not None and number is not None:
            found[record] = stream(sync.args.get("device", 0), number)
    return found


@dataclass
class _Books:
    """What each stream, and each recorded event, stands for: the activities that end last."""

    recorded_on: Mapping[int | None, str]
    ends: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    records: dict[int | None, tuple[Event, ...]] = field(default_factory=dict)
    waits: dict[Event, tuple[Event, ...]] = field(default_factory=dict)

    def play(self, call: Event, sync: Event | None, launched: Iterable[Event]) -> None:
        """One call of the host's."""
        for event in launched:
            self.waits[event] = self.ends.get(event.queue, ())
            self.ends[event.queue] = (event,)
        if call.name in _RECORDS and (queue := self.recorded_on.get(call.correlation)):
            self.records[call.correlation] = self.ends.get(queue, ())
        elif sync is not None and sync.name == _STREAM_WAITS:
            self._join(stream(sync.args.get("device", 0), sync.number("stream")), sync)
        elif call.name in _BLOCKS_ON_ALL + _BLOCKS_ON_STREAM + _BLOCKS_ON_EVENT:
            self.waits[call] = self._awaited(call, sync)

    def _join(self, queue: str, sync: Event) -> None:
        """What comes next on a stream waits for a recorded event, one never recorded apart."""
        event = self.records.get(sync.number("wait_on_cuda_event_record_corr_id"), ())
        here = self.ends.get(queue, ())
        self.ends[queue] = (*here, *(each for each in event if each not in here))

    def _awaited(self, call: Event, sync: Event | None) -> tuple[Event, ...]:
        if call.name in _BLOCKS_ON_EVENT:
            record = sync.number("wait_on_cuda_event_record_corr_id") if sync else None
            return self.records.get(record, ())
        number = sync.number("stream") if sync else None
        if call.name in _BLOCKS_ON_STREAM and sync is not None and number is not None:
            return self.ends.get(stream(sync.args.get("device", 0), number), ())
        everything = chain.from_iterable(self.ends.values())
        # Where the trace does not tell the stream, it cannot have been one that ended later.
        return tuple(e for e in dict.fromkeys(everything) if e.end_us <= call.end_us)
