"""Program files as a whole: versions, devices, and invalid JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx import serialization
from nimble_fx.errors import FileError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import Input
from tests.support.saved import programs_of_models
from tests.support.schedules import schedules


def stored() -> ScheduledProgram:
    """Branchy's inference on the CPU."""
    program = programs_of_models()[0]
    return replace(program.scheduled, constants={}, device="cpu", hardware="cpu", sizes={})


def changed(**members: Any) -> str:
    return json.dumps(json.loads(serialization.encode(stored())) | members)


@given(schedules())
def test_what_a_file_holds_comes_back(graph: Any) -> None:
    whole = replace(stored(), graph=graph, parameters={"w": "a.weight"})
    assert serialization.decode(serialization.encode(whole)) == whole


@given(st.text())
def test_what_would_not_be_read_is_not_written(path: str) -> None:
    program = replace(stored(), parameters={"w": path})
    inputs = (Input("w", stored().graph.inputs[0].type, ("w",), static=True),)
    program = replace(program, graph=replace(program.graph, inputs=inputs, tasks=(), outputs=()))
    try:
        text = serialization.encode(program)
    except FileError:
        return
    assert serialization.decode(text).parameters == {"w": path}


@pytest.mark.parametrize("path", ["a\\b", 'a"""b', "a\nb"])
def test_a_name_that_would_not_be_read_is_named(path: str) -> None:
    program = replace(stored(), parameters={"w": path})
    with pytest.raises(FileError, match=r"Branchy.* cannot be saved: its parameter or buffer w is"):
        serialization.encode(program)


def test_each_task_has_a_line_of_its_own() -> None:
    text = serialization.encode(stored())
    for task in stored().graph.tasks:
        assert sum(f'{{"name": "{task.name}",' in line for line in text.splitlines()) == 1


@pytest.mark.parametrize("member", ["program_file", "nimble_fx", "torch"])
@pytest.mark.parametrize("other", ["0.0.1", 1, None, True, [], {}])
def test_other_versions_are_refused(member: str, other: object) -> None:
    with pytest.raises(FileError, match=f"written with {member} .*compile the program again"):
        serialization.decode(changed(**{member: other}))


@pytest.mark.parametrize(
    ("device", "hardware", "message"),
    [
        (
            "cuda:77",
            "NVIDIA H200",
            "scheduled for cuda:77 .NVIDIA H200., and this machine has none",
        ),
        ("cpu", "NVIDIA H200", "scheduled for cpu .NVIDIA H200., and here it is cpu"),
        ("tpu", "tpu", "this machine has none"),
        ("meta", "meta", "this machine has none"),
        ("virtual (seed x)", "virtual", "this machine has none"),
        (7, "cpu", "device is 7, not text"),
        ("cpu", None, "hardware is None, not text"),
    ],
)
def test_a_device_that_is_not_here_is_refused(
    device: object, hardware: object, message: str
) -> None:
    with pytest.raises(FileError, match=message):
        serialization.decode(changed(device=device, hardware=hardware))


def test_tensors_on_another_device_are_refused() -> None:
    text = serialization.encode(stored()).replace('"device": "cpu"}', '"device": "cuda:0"}')
    with pytest.raises(FileError, match="not the device of a_weight, which is cuda:0"):
        serialization.decode(text)


def test_more_streams_than_the_device_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nimble_fx.devices.cpu.Cpu.stream_limit", 1)
    with pytest.raises(FileError, match="not a device with 2 streams: it has 1"):
        serialization.decode(serialization.encode(stored()))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "7", '"program_file"', "\0", "{}", "NaN", "import os"),
        *("[" * 100_000, '{"a":' * 100_000, "1" * 10_000, '{"program_file": NaN}'),
        '{"program_file": 1, "program_file": 1}',
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_program_file_is_refused(text: str) -> None:
    with pytest.raises(FileError):
        serialization.decode(text)


def test_a_deep_member_is_refused() -> None:
    text = changed(outputs="here").replace('"here"', "[" * 900 + "]" * 900)
    with pytest.raises(FileError):
        serialization.decode(text)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"more": 1}, "more is 1, not a member"),
        ({"source": "text"}, "source is 'text', not a list"),
        ({"source": [1]}, r"source\[0\] is 1, not text"),
        ({"parameters": {"y": "a"}}, r"parameters\.y"),
        ({"parameters": {"a_weight": "a\nb"}}, r"parameters\.a_weight"),
        ({"values": {"c": ""}}, r"values\.c"),
    ],
)
def test_other_members_are_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        serialization.decode(changed(**members))


def test_a_constant_without_its_value_is_refused() -> None:
    constant = {"name": "c", "type": {"shape": [], "stride": [], "dtype": "int8", "device": "cpu"}}
    with pytest.raises(FileError, match="values has no c"):
        serialization.decode(changed(constants=[constant]))
    huge = {**constant["type"], "shape": [2**62, 2**62], "stride": [0, 0]}  # type: ignore[dict-item]
    with pytest.raises(FileError, match="cannot be created"):
        serialization.decode(changed(constants=[constant | {"type": huge}], values={"c": "AA=="}))


def test_files_are_read_as_utf8_and_named_if_they_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b"\xff")
    with pytest.raises(FileError, match="cannot be read"):
        serialization.read(path)
    with pytest.raises(FileError, match="cannot be read"):
        serialization.read(tmp_path / "missing.json")
    with pytest.raises(FileError, match=r"broken\.json/x\.json cannot be written"):
        serialization.write(path / "x.json", "{}")
