"""Runs of a host and a device with streams and events, and the traces that Kineto would write."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

STREAMS = (7, 20, 24)
CALL_US = 2
"""What each call of the host's takes; a wait takes as long once it is over."""


@dataclass(frozen=True)
class Call:
    """What the host does next, some time after what it did before.

    Attributes:
        kind: "launch", "record", "wait", or what it synchronizes with: "stream", "device", "event".
        gap_us: what passes before it.
        stream: which stream it is about.
        us: what the kernel takes, for a launch.
        record: which of the records made so far it is about, counted modulo their number.
    """

    kind: str
    gap_us: int
    stream: int
    us: int
    record: int


def calls(max_calls: int = 20) -> st.SearchStrategy[list[Call]]:
    """What a host calls; at least one launch is among it."""
    kinds = st.sampled_from(["launch"] * 4 + ["record", "wait"] * 2 + ["stream", "device", "event"])
    small = st.integers(0, 12)
    call = st.builds(Call, kinds, small, st.sampled_from(STREAMS), st.integers(1, 30), small)
    launch = st.builds(Call, st.just("launch"), small, st.sampled_from(STREAMS), small, small)
    return st.tuples(launch, st.lists(call, max_size=max_calls - 1)).map(lambda p: [p[0], *p[1]])


@dataclass
class Played:
    """A run, played step by step.

    Attributes:
        events: as Kineto would write them.
        starts_us: when the kernels began, by name.
        span_us: from the beginning of the first call to the end of all.
    """

    calls: Sequence[Call]
    factor: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)
    starts_us: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ends = dict.fromkeys(STREAMS, 0)
        self._records: list[tuple[int, int, int]] = []
        self._now = 1000
        for number, call in enumerate(self.calls, start=1):
            self._now += call.gap_us
            getattr(self, f"_{call.kind}")(call, number)

    @property
    def span_us(self) -> int:
        starts = [event["ts"] for event in self.events]
        return max(event["ts"] + event["dur"] for event in self.events) - min(starts)

    def _launch(self, call: Call, number: int) -> None:
        self._call("cudaLaunchKernel", number)
        start, us = max(self._now, self._ends[call.stream]), call.us * self.factor
        self._ends[call.stream] = start + us
        self.starts_us[f"kernel #{number}"] = start
        args = {"device": 0, "stream": call.stream, "correlation": number}
        self._write("kernel", "kernel", start, us, args)

    def _record(self, call: Call, number: int) -> None:
        self._records.append((number, call.stream, self._ends[call.stream]))
        self._call("cudaEventRecord", number)

    def _wait(self, call: Call, number: int) -> None:
        args: dict[str, Any] = {"stream": call.stream}
        if self._records:
            args |= self._about(call)
            self._ends[call.stream] = max(self._ends[call.stream], self._recorded(call)[2])
        self._sync("Stream Wait Event", number, self._now, args)
        self._call("cudaStreamWaitEvent", number)

    def _stream(self, call: Call, number: int) -> None:
        end = self._ends[call.stream]
        self._block("cudaStreamSynchronize", "Stream Sync", number, end, {"stream": call.stream})

    def _device(self, call: Call, number: int) -> None:
        end = max(self._ends.values())
        self._block("cudaDeviceSynchronize", "Context Sync", number, end, {"stream": -1})

    def _event(self, call: Call, number: int) -> None:
        end = self._recorded(call)[2] if self._records else 0
        about = self._about(call) if self._records else {}
        self._block("cudaEventSynchronize", "Event Sync", number, end, {"stream": -1, **about})

    def _recorded(self, call: Call) -> tuple[int, int, int]:
        return self._records[call.record % len(self._records)]

    def _about(self, call: Call) -> dict[str, int]:
        number, stream, _ = self._recorded(call)
        return {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": number}

    def _block(self, name: str, sync: str, number: int, end: int, args: dict[str, Any]) -> None:
        until = max(self._now, end) + CALL_US
        self._sync(sync, number, self._now, args)
        self._call(name, number, until)

    def _call(self, name: str, number: int, until: int | None = None) -> None:
        start, self._now = self._now, until or self._now + CALL_US
        self._write("cuda_runtime", name, start, self._now - start, {"correlation": number})

    def _sync(self, name: str, number: int, start: int, args: dict[str, Any]) -> None:
        self._write("cuda_sync", name, start, 1, {"device": 0, "correlation": number, **args})

    def _write(self, category: str, name: str, ts: int, us: int, args: dict[str, Any]) -> None:
        where = {"pid": 1, "tid": 2} if category == "cuda_runtime" else {"pid": 0, "tid": 7}
        event = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": us, "args": args}
        self.events.append({**event, **where})


def written(run: Played) -> str:
    """The trace of a run, as a file's text."""
    return json.dumps({"traceEvents": run.events})
