"""Simulations of recorded runs reproduce their times and critical paths."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nimble_fx.errors import OptionError
from nimble_fx.simulation.discrete_event import Activity, simulate
from nimble_fx.traces import Recorded, read
from tests.strategies.traces import Call, Played, calls, written
from tests.support.recorded_traces import FORWARD, JUDGED, RUNS, judged, recorded


def on_device(run: Recorded) -> dict[str, Activity]:
    return {each.name: each for each in run.activities if each.engine is not None}


@pytest.mark.parametrize(("name", "within", "instance"), RUNS)
def test_a_run_that_is_not_edited_takes_what_was_recorded(
    name: str, within: str | None, instance: int
) -> None:
    run = read(recorded(name), within=within, instance=instance)
    assert simulate(run.activities).makespan_us == pytest.approx(run.span_us, rel=0.05)


@pytest.mark.parametrize(("name", "within", "instance", "pauses"), JUDGED)
def test_the_device_does_on_the_critical_path_what_hta_says(
    name: str, within: str | None, instance: int, pauses: bool
) -> None:
    """Of the device's time on either critical path, 99% is the same kernels', copies', memsets'.

    The host's part is not compared: HTA leaves out events of length 0, and of a launch counts all
    where we count what is before its kernel. HTA lets the time between two outermost operators of
    a thread be none, where we, as Daydream, let it stand. In runs with a warm-up it therefore
    takes the last pass before a synchronization to be the device's, which had ended 33 us before
    the host came to wait for it. With that time counted it says the same as we do.
    """
    path = recorded(name)
    run = read(path, within=within, instance=instance)
    kernels = on_device(run)
    ours = {n: kernels[n].us for n in simulate(run.activities).critical_path if n in kernels}
    theirs = judged(name, within, instance, pauses)
    same = sum(us for name, us in ours.items() if name in theirs)
    assert same >= 0.99 * max(sum(ours.values()), sum(theirs.values()))


def test_a_mark_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    path = recorded("alexnet_trace")
    for within, instance in (("nonsense", 0), (FORWARD, 2), (FORWARD, -1)):
        with pytest.raises(OptionError, match=r"clear_cache"):
            read(path, within=within, instance=instance)


@pytest.mark.parametrize(
    ("within", "instance"), [(None, 3), (FORWARD, "0"), (FORWARD, True), (FORWARD, None)]
)
def test_an_instance_is_the_index_of_a_mark(within: str | None, instance: Any) -> None:
    with pytest.raises(OptionError, match="it takes an index, together with `within`"):
        read(recorded("alexnet_trace"), within=within, instance=instance)


def read_back(run: Played, folder: Path) -> Recorded:
    (folder / "trace.json").write_text(written(run))
    return read(folder / "trace.json")


@given(calls())
def test_kernels_start_when_they_were_recorded_to(drawn: list[Call]) -> None:
    run = Played(drawn)
    with TemporaryDirectory() as folder:
        again = simulate(read_back(run, Path(folder)).activities)
    begin = run.events[0]["ts"]
    starts = {s.name: s.start_us + begin for s in again.spans if s.name in run.starts_us}
    assert starts == run.starts_us
    assert again.makespan_us == run.span_us


def waits_twice(*records: int) -> list[Call]:
    """A kernel waits for these of the two records of another stream."""
    recorded = [Call("launch", 0, 7, 5, 0), Call("record", 0, 7, 0, 0)] * 2
    return [*recorded, *(Call("wait", 0, 20, 0, i) for i in records), Call("launch", 0, 20, 5, 0)]


@example(waits_twice(0, 1), 5)
@example(waits_twice(1, 0), 5)
@given(calls(), st.integers(0, 5))
def test_a_run_with_slower_kernels_is_what_the_device_would_make_of_it(
    drawn: list[Call], factor: int
) -> None:
    """Streams, events and synchronization are all there: those that bound nothing when it was
    recorded too."""
    with TemporaryDirectory() as folder:
        run = read_back(Played(drawn), Path(folder))
    slower = [replace(a, us=a.us * factor) if a.engine else a for a in run.activities]
    assert simulate(slower).makespan_us == Played(drawn, factor).span_us


def test_a_kernel_that_starts_before_its_call_returns_keeps_its_start(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "kernel", "pid": 0, "tid": 7}
    args = {"args": {"correlation": 1, "device": 0, "stream": 7}}
    after = {"ph": "X", "cat": "cpu_op", "name": "aten::view", "pid": 1, "tid": 1}
    events = [{**call, "ts": 0, "dur": 10}, {**kernel, "ts": 4, "dur": 16}]
    listed = [{**event, **args} for event in events] + [{**after, "ts": 12, "dur": 3, "args": {}}]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": listed}))
    spans = simulate(read(tmp_path / "trace.json").activities).spans
    assert [(span.start_us, span.end_us) for span in spans[1:]] == [(0, 4), (4, 20), (12, 15)]


def test_kernels_without_their_call_start_when_they_did(tmp_path: Path) -> None:
    run = Played([Call("launch", 0, 7, 5, 0), Call("launch", 3, 20, 5, 0)])
    kernels = [event for event in run.events if event["cat"] == "kernel"]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": kernels}))
    spans = simulate(read(tmp_path / "trace.json").activities).spans
    assert [span.start_us for span in spans] == [0, 0, 5]
