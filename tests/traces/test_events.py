"""Errors say what is wrong with a trace file; valid files are read unchanged."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nimble_fx.errors import FileError
from nimble_fx.traces import read
from nimble_fx.traces.events import read_events


def event(category: str = "kernel", name: str = "relu", **fields: Any) -> dict[str, Any]:
    basic = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": 10, "dur": 5}
    return {**basic, "args": {"stream": 7, "device": 0, "correlation": 3}, **fields}


def written(path: Path, *events: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return path


def test_an_event_is_read_as_it_stands(tmp_path: Path) -> None:
    (kernel,) = read_events(written(tmp_path / "t.json", event(), {"ph": "M", "name": "process"}))
    assert (kernel.kind, kernel.name, kernel.queue, kernel.correlation) == (
        "device",
        "relu",
        "gpu0 s7",
        3,
    )
    assert (kernel.start_us, kernel.us) == (10, 5)


def test_events_are_sorted_and_a_packed_file_is_the_same(tmp_path: Path) -> None:
    events = [event(ts=9, dur=1), event(ts=3.5, dur=1), event(ts=3.5, dur=2)]
    plain = written(tmp_path / "t.json", *events)
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        assert [(e.start_us, e.us) for e in read_events(path)] == [(3.5, 2), (3.5, 1), (9, 1)]


def test_what_kineto_writes_for_nothing_is_nothing(tmp_path: Path) -> None:
    args = {"a": -1, "b": 4294967295, "c": "7", "d": True, "e": 0}
    (kernel,) = read_events(written(tmp_path / "t.json", event(args=args)))
    assert [kernel.number(arg) for arg in "abcdef"] == [None, None, None, None, 0, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ('{"traceEvents": [}', "not JSON"),
        ('{"traceEvents": [{"ph": "X", ', "end is missing, from line 1"),
        ('{"traceEvents": [{"ph": "X', "end is missing, from line 1"),
        ('{"traceEvents": []', "end is missing, from line 1"),
        ("[]", 'no list "traceEvents"'),
        ("{}", 'no list "traceEvents"'),
        ('{"traceEvents": {}}', 'no list "traceEvents"'),
        ('{"traceEvents": [3]}', "event 0 of its traceEvents is not an object"),
        ("[" * 100_000, "nested too deeply|end is missing"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as caught:
        read_events(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ts": None}, 'event 1 of its traceEvents, relu, has no number "ts"'),
        ({"dur": "5"}, 'no number "dur"'),
        ({"dur": float("nan")}, 'no number "dur"'),
        ({"dur": True}, 'no number "dur"'),
        ({"dur": -1}, "relu, ends before it starts"),
        ({"name": None}, 'event 1 of its traceEvents has no "name"'),
        ({"args": []}, "args"),
    ],
)
def test_an_event_that_lacks_a_field_is_named(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(FileError, match=message):
        read_events(written(tmp_path / "t.json", event(), event(**fields)))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_events(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="it is not text"):
        read_events(tmp_path / "binary")


@pytest.mark.parametrize("path", ["~nobody-of-that-name/trace.json", "a\0b"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(FileError, match=r"nobody-of-that-name|null"):
        read(path)


def test_a_packed_file_that_was_cut_off_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    packed = gzip.compress(written(tmp_path / "t.json", event()).read_bytes())
    for n in range(2, len(packed)):
        (tmp_path / "cut.gz").write_bytes(packed[:n])
        with pytest.raises(FileError, match="its end is missing"):
            read_events(tmp_path / "cut.gz")


def test_a_trace_of_the_host_alone_has_no_kernels(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", event("cpu_op", "aten::relu"))
    assert len(read_events(path)) == 1
    with pytest.raises(FileError, match=r"no kernels, .*ProfilerActivity\.CUDA"):
        read(path)
