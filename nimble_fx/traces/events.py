"""Reads the events of a trace file: Kineto's JSON, checked field by field."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nimble_fx.errors import FileError
from nimble_fx.serialization.document import absolute

Kind = Literal["op", "call", "device", "sync", "annotation"]
"""An operator; a CUDA call; a kernel, copy or memset; a synchronization; a user annotation."""

KINDS: Mapping[str, Kind] = {
    "cpu_op": "op",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "kernel": "device",
    "gpu_memcpy": "device",
    "gpu_memset": "device",
    "cuda_sync": "sync",
    "user_annotation": "annotation",
}
"""The kinds by Kineto's categories. Others (Python frames, flows, counters) take no time."""

MAX_US = 1e18
"""The largest valid time in microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceEvent:
    """One event of a trace; events compare by identity.

    Attributes:
        kind: its kind.
        category: Kineto's name of that.
        name: the operator, the call, the kernel.
        start_us: its start, in microseconds of the trace's clock.
        end_us: its end.
        queue: the host thread or the stream that it was on.
        args: its other fields.
    """

    kind: Kind
    category: str
    name: str
    start_us: float
    end_us: float
    queue: str
    args: Mapping[str, Any]

    @property
    def us(self) -> float:
        """Its duration in microseconds."""
        return self.end_us - self.start_us

    def number(self, arg: str) -> int | None:
        """A number among its arguments; None if it is missing, which Kineto writes as -1 too."""
        value = self.args.get(arg)
        return value if type(value) is int and 0 <= value < 2**32 - 1 else None

    @property
    def correlation(self) -> int | None:
        """The id that a call shares with the activities that it launched."""
        return self.number("correlation")


def read_events(path: str | os.PathLike[str]) -> tuple[TraceEvent, ...]:
    """The events of a trace file that take time, by ascending start.

    Args:
        path: a file from `torch.profiler.profile.export_chrome_trace`, gzipped or not.

    Raises:
        FileError: it cannot be read, is truncated or not JSON, has no "traceEvents", or an event in
            it lacks a field; the message says which.
    """
    file = absolute(path)
    try:
        return _events(_document(_text(file)))
    except FileError as error:
        raise FileError(f"{file}: {error}") from error


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(
            f"its end is missing, or it is damaged: {error}; record it again"
        ) from error
    except UnicodeDecodeError as error:
        raise FileError("it is not text: a trace is JSON, gzipped or not") from error
    except OSError as error:
        raise FileError(f"it cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # the path has a null character
        raise FileError(f"it cannot be read: {error}") from error


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) > 0 or error.msg.startswith("Unterminated string"):
            raise FileError(
                f"its end is missing, from line {error.lineno} on: the profiler was stopped while "
                "it wrote, or the file was cut off; record it again"
            ) from error
        raise FileError(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise FileError("it is nested too deeply for a trace") from error
    except ValueError as error:  # an integer of thousands of digits
        raise FileError(f"it has a number that no trace has: {error}") from error


def _events(document: Any) -> tuple[TraceEvent, ...]:
    listed = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise FileError(
            'it has no list "traceEvents", so it is not a trace of torch.profiler; write one with '
            "profile.export_chrome_trace(path)"
        )
    return tuple(sorted(_timed(listed), key=lambda event: (event.start_us, -event.end_us)))


def _timed(listed: Iterable[Any]) -> Iterable[TraceEvent]:
    for i, each in enumerate(listed):
        if not isinstance(each, dict):
            raise FileError(f"event {i} of its traceEvents is not an object")
        category = each.get("cat")
        if each.get("ph") == "X" and isinstance(category, str) and category in KINDS:
            yield _event(each, i)


def _event(fields: Mapping[str, Any], i: int) -> TraceEvent:
    category, name, args = fields["cat"], fields.get("name"), fields.get("args", {})
    if not isinstance(name, str) or not isinstance(args, dict):
        message = f'event {i} of its traceEvents has no "name", or "args" that are not an object'
        raise FileError(message)
    start, us = (_number(fields, field, i) for field in ("ts", "dur"))
    if us < 0:
        raise FileError(f"event {i} of its traceEvents, {name}, ends before it starts")
    return TraceEvent(
        KINDS[category], category, name, start, start + us, _queue(fields, args), args
    )


def _number(fields: Mapping[str, Any], field: str, i: int) -> float:
    value = fields.get(field)
    if not isinstance(value, (int, float)) or type(value) is bool or not abs(value) <= MAX_US:
        raise FileError(f'event {i} of its traceEvents, {fields["name"]}, has no number "{field}"')
    return float(value)


def _queue(fields: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    if KINDS[fields["cat"]] == "device":
        return stream(args.get("device", 0), args.get("stream", fields.get("tid")))
    return f"host {fields.get('pid')}:{fields.get('tid')}"


def stream(device: Any, number: Any) -> str:
    """The name of a stream's queue."""
    return f"gpu{device} s{number}"
