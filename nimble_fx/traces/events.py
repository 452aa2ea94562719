"""Trace files to events: Kineto's JSON, checked field by field."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nimble_fx.errors import FileError

Kind = Literal["op", "call", "device", "sync", "annotation"]
"""An operator, a call of CUDA's, a kernel or copy or memset, what a call waited for, a mark."""

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
"""By Kineto's categories. Others (Python's frames, flows, counters) say nothing of the time."""

LATEST = 1e18
"""Microseconds: no clock shows more."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One event of a trace; no two are equal, so that they can be told apart.

    Attributes:
        kind: what it is.
        category: Kineto's word for that.
        name: the operator, the call, the kernel.
        start_us: when it began, in microseconds of the trace's clock.
        end_us: when it ended.
        queue: the host's thread or the device's stream that it was on.
        args: what else Kineto tells.
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
        """How long it took."""
        return self.end_us - self.start_us

    def number(self, arg: str) -> int | None:
        """A number among its arguments; None if it is not told, which Kineto writes as -1 too."""
        value = self.args.get(arg)
        return value if type(value) is int and 0 <= value < 2**32 - 1 else None

    @property
    def correlation(self) -> int | None:
        """What a call and the activities that it launched have in common."""
        return self.number("correlation")


def read_events(path: str | os.PathLike[str]) -> tuple[Event, ...]:
    """The events of a trace file that have to do with time, in the order of their beginning.

    Args:
        path: what `torch.profiler.profile.export_chrome_trace` wrote, packed by gzip or not.

    Raises:
        FileError: it cannot be read, was cut off, is not JSON, has no "traceEvents", or an event
            in it lacks a field; the message says which.
    """
    file = Path(path).expanduser()
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
            f"its end is missing, or it was damaged: {error}; record it again"
        ) from error
    except UnicodeDecodeError as error:
        raise FileError("it is no text: a trace is JSON, packed by gzip or not") from error
    except OSError as error:
        raise FileError(f"it cannot be read: {error.strerror or error}") from error


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
        raise FileError(f"it has a number that is none of a trace: {error}") from error


def _events(document: Any) -> tuple[Event, ...]:
    listed = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise FileError(
            'it has no list "traceEvents", so it is no trace of torch.profiler; write one with '
            "profile.export_chrome_trace(path)"
        )
    return tuple(sorted(_timed(listed), key=lambda event: (event.start_us, -event.end_us)))


def _timed(listed: Iterable[Any]) -> Iterable[Event]:
    for i, each in enumerate(listed):
        if not isinstance(each, dict):
            raise FileError(f"event {i} of its traceEvents is no object")
        category = each.get("cat")
        if each.get("ph") == "X" and isinstance(category, str) and category in KINDS:
            yield _event(each, i)


def _event(fields: Mapping[str, Any], i: int) -> Event:
    category, name, args = fields["cat"], fields.get("name"), fields.get("args", {})
    if not isinstance(name, str) or not isinstance(args, dict):
        raise FileError(f'event {i} of its traceEvents has no "name", or "args" that are no object')
    start, us = (_number(fields, field, i) for field in ("ts", "dur"))
    if us < 0:
        raise FileError(f"event {i} of its traceEvents, {name}, ends before it begins")
    return Event(KINDS[category], category, name, start, start + us, _queue(fields, args), args)


def _number(fields: Mapping[str, Any], field: str, i: int) -> float:
    value = fields.get(field)
    if not isinstance(value, (int, float)) or type(value) is bool or not abs(value) <= LATEST:
        raise FileError(f'event {i} of its traceEvents, {fields["name"]}, has no number "{field}"')
    return float(value)


def _queue(fields: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    if KINDS[fields["cat"]] == "device":
        return stream(args.get("device", 0), args.get("stream", fields.get("tid")))
    return f"host {fields.get('pid')}:{fields.get('tid')}"


def stream(device: Any, number: Any) -> str:
    """The name of a stream's queue."""
    return f"gpu{device} s{number}"
