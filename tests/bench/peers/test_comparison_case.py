"""A contest checks before it times, reports who failed and why, and writes its rows as JSON."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import inference, memory, training
from bench.command_line.record import plain
from bench.models.model import Form, Model, mean_square
from bench.peers import comparison
from bench.peers.baselines import Compile, peers, policies
from bench.peers.comparison_case import Contest, hold
from bench.tables.rows import Row
from tests.support.models import Branchy

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")

FORM = Form(
    title="4 numbers",
    build=Branchy,
    inputs=lambda batch: (torch.randn(batch, 4),),
    output_shape=lambda batch: (batch, 4),
    loss=mean_square,
)
BRANCHY = Model("branchy", "Branchy", "this test", 40, FORM, (FORM,))


def contest(form: Form = FORM, training: bool = False) -> Contest:
    return Contest(BRANCHY, form, 2, training, CPU, rounds=2)


def contestants(*names: str) -> dict[str, Compile]:
    there = peers(CPU, training=False)
    return {name: there[name] for name in ("eager", *names)} | policies(["nimble"])


@pytest.mark.parametrize("training", [False, True])
def test_all_that_are_right_are_timed_in_each_round(training: bool) -> None:
    row = hold(contest(training=training), contestants("aot_eager") | policies(["serial"]))
    assert list(row.results) == ["eager", "aot_eager", "nimble", "serial"]
    for result in row.results.values():
        assert result.error is None
        assert result.same_bits
        assert len(result.samples) == 2
        assert min(result.samples) > 0
    assert row.floor is not None
    assert next((s.policy, s.n_streams) for s in row.schedules) == ("nimble", 2)
    assert {s.policy for s in row.schedules} == {"nimble", "serial"}
    assert row.inputs == ["f32[2, 4]"]


def test_the_turn_comes_after_all_first_calls_and_before_all_timing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    def recorded(name: str) -> Compile:
        def compile_(model: nn.Module, inputs: Sequence[Tensor]) -> Callable[..., Tensor]:
            def run(x: Tensor) -> Tensor:
                events.append(name)
                result: Tensor = model(x)
                return result

            return run

        return compile_

    def no_floor(case: object) -> tuple[None, str]:
        events.append("floor")
        return None, ""

    monkeypatch.setattr("bench.peers.comparison_case._floor", no_floor)
    hold(contest(), {"eager": recorded("eager"), "b": recorded("b")}, lambda: events.append("turn"))
    turn = events.index("turn")
    assert events[:turn] == ["eager"] * 7 + ["b"] * 7
    assert events.count("turn") == 1
    assert {*events[turn:-1]} == {"turn", "eager", "b"}
    assert events[-1] == "floor"


def off_by(factor: float, after: int = 0) -> Compile:
    """A compiler whose result is wrong once it was called so often."""

    def compile_(model: nn.Module, inputs: Sequence[Tensor]) -> Callable[..., Tensor]:
        n_calls = 0

        def run(x: Tensor) -> Tensor:
            nonlocal n_calls
            n_calls += 1
            result: Tensor = model(x)
            return result * factor if n_calls > after else result

        return run

    return compile_


def stale(model: nn.Module, inputs: Sequence[Tensor]) -> Callable[..., Tensor]:
    result = model(*inputs)
    return lambda x: result


def fails(model: nn.Module, inputs: Sequence[Tensor]) -> Callable[..., Tensor]:
    raise ValueError("no such kernel\nand a long story")


def backend_fails(model: nn.Module, inputs: Sequence[Tensor]) -> Callable[..., Tensor]:
    return torch.compile(model, backend=fails)


@pytest.mark.parametrize(
    ("compile_", "error"),
    [
        (off_by(1.01), "InaccurateError: result 0 is"),
        (off_by(1.01, after=8), "after it was timed: InaccurateError: result 0 is"),
        (stale, "InaccurateError: result 0 is"),
        (fails, "ValueError: no such kernel"),
        (backend_fails, "ValueError: no such kernel"),
    ],
)
def test_one_that_is_wrong_or_fails_is_a_result_that_says_so(compile_: Compile, error: str) -> None:
    row = hold(contest(), contestants() | {"wrong": compile_})
    assert row.results["wrong"].error is not None
    assert row.results["wrong"].error.startswith(error)
    assert "\n" not in row.results["wrong"].error
    assert row.results["wrong"].samples == ()
    assert row.ratio("wrong", over="nimble") is None
    assert row.results["nimble"].samples


def explodes(batch: int) -> tuple[Tensor, ...]:
    raise MemoryError("out of memory")


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (
            lambda batch: (torch.zeros(batch, 4),),
            "InaccurateError: .*different inputs, same output",
        ),
        (explodes, "MemoryError: out of memory"),
    ],
)
def test_a_model_that_cannot_be_measured_is_a_row_that_says_so(
    inputs: Callable[[int], Any], error: str
) -> None:
    row = hold(contest(replace(FORM, inputs=inputs)), contestants())
    assert list(row.results) == ["eager"]
    assert re.match(error, row.results["eager"].error or "")


def test_a_row_comes_back_from_json_as_it_was() -> None:
    row = hold(contest(), contestants() | {"wrong": fails})
    again = Row.of(json.loads(json.dumps(plain(row))))
    assert Row.of(json.loads(json.dumps(plain(again)))) == again
    assert again.title == row.title
    assert again.results["wrong"] == row.results["wrong"]
    mine, theirs = row.ratio("eager", over="nimble"), again.ratio("eager", over="nimble")
    assert mine is not None
    assert theirs is not None
    assert theirs.median == pytest.approx(mine.median, rel=1e-4)


@pytest.mark.parametrize(
    ("main", "name"), [(inference.main, "inference"), (training.main, "training")]
)
def test_the_command_writes_each_row_and_what_it_did_not_reach(
    main: Callable[[Sequence[str]], int],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.command_line.selection.find", lambda name: BRANCHY)
    to = ["--out", str(tmp_path), "--device", "cpu", "--rounds", "2", "--peers", "aot_eager"]
    assert main(["--models", "branchy", "--batch", "2", "3", *to]) == 0
    document = json.loads((tmp_path / "cpu" / f"{name}.json").read_text())
    assert [row["batch"] for row in document["results"]["rows"]] == [2, 3]
    assert {target["limit"] for target in document["targets"]} == {comparison.CPU_LIMIT}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_command_that_reaches_no_model_fails_and_leaves_earlier_results(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.command_line.selection.find", lambda name: BRANCHY)
    earlier = tmp_path / "cpu" / "inference.json"
    earlier.parent.mkdir()
    earlier.write_text("measured before")
    to = ["--out", str(tmp_path), "--device", "cpu", "--peers", "--jobs", jobs]
    assert inference.main(["--models", "branchy", *to, "--minutes", "0"]) == 1
    assert "No model was reached in time: nothing is written." in capsys.readouterr().out
    assert earlier.read_text() == "measured before"


def test_what_there_was_no_time_for_is_named(tmp_path: Path) -> None:
    contests = [contest(), contest()]
    rows = {0: hold(contest(), contestants())}
    assert comparison.results(rows, contests)["not_reached"] == [contests[1].title]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "resnet5"], "did you mean 'resnet50'"),
        (["--peers", "tensorrt"], "no peer 'tensorrt' on cpu; there are eager, dynamo"),
        (["--batch", "0"], "'0' is not a number of at least 1"),
        (["--device", "gpu"], "there is no device 'gpu'"),
        (["--policies", "fastest"], "no policy 'fastest'; there are auto, critical-path, nimble"),
        (["--policies", "no_module:Mine"], "No module named 'no_module'"),
        (["--rounds", "0"], "'0' is not a number of at least 1"),
    ],
)
def test_a_bad_argument_is_an_error_that_says_what_there_is(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        inference.main(["--device", "cpu", *arguments])
    assert message in capsys.readouterr().err


def test_what_there_is_not_in_training_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        training.main(["--device", "cpu", "--models", "ensemble_8", "--peers", "onnxruntime"])
    assert "no peer 'onnxruntime' on cpu; there are eager" in capsys.readouterr().err
    for main in (training.main, lambda arguments: memory.main(["--training", *arguments])):
        with pytest.raises(SystemExit, match="no training of nasnet_a_large"):
            main(["--device", "cpu", "--models", "nasnet_a_large", "--no-write"])
