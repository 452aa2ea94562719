"""The dependencies of kernels and host calls by CUDA's rules: streams, events, synchronization."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from nimble_fx.traces.events import TraceEvent, stream

_BLOCKS_ON_ALL = ("cudaDeviceSynchronize", "cuCtxSynchronize")
_BLOCKS_ON_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize")
_BLOCKS_ON_EVENT = ("cudaEventSynchronize", "cuEventSynchronize")
"""Calls that wait for the device. cudaEventQuery does not wait."""

_RECORDS = ("cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord")
_STREAM_WAITS = "Stream Wait Event"


@dataclass(frozen=True)
class Order:
    """The launches of a trace, and its dependencies besides the order of the host's threads.

    Attributes:
        launched: for each call, the device activities that it launched.
        waits: for each call or device activity, the device activities that had to end first.
        loose: the device activities whose call is not in the trace.
    """

    launched: Mapping[TraceEvent, Sequence[TraceEvent]]
    waits: Mapping[TraceEvent, Sequence[TraceEvent]]
    loose: Sequence[TraceEvent]


def order(events: Sequence[TraceEvent], leaves: Iterable[TraceEvent]) -> Order:
    """The dependencies in a trace, by replaying the host's calls with CUDA's rules.

    Args:
        events: all events, sorted by start.
        leaves: the calls and operators to replay, sorted by start.
    """
    on_device: dict[int | None, list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event.kind == "device":
            on_device[event.correlation].append(event)
    loose = on_device.pop(None, [])
    syncs = {e.correlation: e for e in events if e.kind == "sync"}
    state = _StreamState(_recorded_on(syncs.values()))
    launched: dict[TraceEvent, Sequence[TraceEvent]] = {}
    for leaf in leaves:
        if leaf.kind == "call" and leaf.correlation is not None:
            launched[leaf] = on_device.pop(leaf.correlation, ())
            state.replay(leaf, syncs.get(leaf.correlation), launched[leaf])
    return Order(launched, state.waits, (*loose, *chain.from_iterable(on_device.values())))


def _recorded_on(syncs: Iterable[TraceEvent]) -> Mapping[int | None, str]:
    """The stream of each recorded event, by the correlation id of the recording call."""
    found: dict[int | None, str] = {}
    for sync in syncs:
        record = sync.number("wait_on_cuda_event_record_corr_id")
        number = sync.number("wait_on_stream")
        if record is not None and number is not None:
            found[record] = stream(sync.args.get("device", 0), number)
    return found


@dataclass
class _StreamState:
    """The last activities of each stream, and those that each recorded event covers."""

    recorded_on: Mapping[int | None, str]
    ends: dict[str, tuple[TraceEvent, ...]] = field(default_factory=dict)
    records: dict[int | None, tuple[TraceEvent, ...]] = field(default_factory=dict)
    waits: dict[TraceEvent, tuple[TraceEvent, ...]] = field(default_factory=dict)

    def replay(
        self, call: TraceEvent, sync: TraceEvent | None, launched: Iterable[TraceEvent]
    ) -> None:
        """Replays one call of the host."""
        for event in launched:
            self.waits[event] = self.ends.get(event.queue, ())
            self.ends[event.queue] = (event,)
        if call.name in _RECORDS and (queue := self.recorded_on.get(call.correlation)):
            self.records[call.correlation] = self.ends.get(queue, ())
        elif sync is not None and sync.name == _STREAM_WAITS:
            self._join(stream(sync.args.get("device", 0), sync.number("stream")), sync)
        elif call.name in _BLOCKS_ON_ALL + _BLOCKS_ON_STREAM + _BLOCKS_ON_EVENT:
            self.waits[call] = self._awaited(call, sync)

    def _join(self, queue: str, sync: TraceEvent) -> None:
        """Makes a stream wait for an event; nothing if it was not recorded in the trace."""
        covered = self.records.get(sync.number("wait_on_cuda_event_record_corr_id"), ())
        last = {each.queue: each for each in self.ends.get(queue, ())}
        for each in covered:
            known = last.setdefault(each.queue, each)
            last[each.queue] = max(known, each, key=lambda event: event.start_us)
        self.ends[queue] = tuple(last.values())

    def _awaited(self, call: TraceEvent, sync: TraceEvent | None) -> tuple[TraceEvent, ...]:
        if call.name in _BLOCKS_ON_EVENT:
            record = sync.number("wait_on_cuda_event_record_corr_id") if sync else None
            return self.records.get(record, ())
        number = sync.number("stream") if sync else None
        if call.name in _BLOCKS_ON_STREAM and sync is not None and number is not None:
            return self.ends.get(stream(sync.args.get("device", 0), number), ())
        everything = chain.from_iterable(self.ends.values())
        # If the trace does not name the stream, it cannot be one whose activity ended later.
        return tuple(e for e in dict.fromkeys(everything) if e.end_us <= call.end_us)
