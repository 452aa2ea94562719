"""Evidence is gathered step by step; a step that fails or takes too long does not end it."""

import json
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM, getsignal, signal

import pytest

from bench import evidence
from bench.evidence import Step, main, run, steps
from bench.inference import main as inference
from bench.memory import main as memory
from bench.models.registry import ZOO
from bench.training import main as training

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """The command ends at once when it is told to; the tests that call it go on as they were."""
    before = getsignal(SIGTERM)
    yield
    signal(SIGTERM, before)


def test_the_tests_come_first_and_the_telling_models_before_the_others(tmp_path: Path) -> None:
    first, second, *_ = steps(tmp_path, "cpu")
    assert first.arguments[:3] == ("pytest", "-m", "gpu")
    models = second.arguments[second.arguments.index("--models") + 1 :]
    assert models[:3] == ("googlenet", "inception_v3", "nasnet_a_mobile")
    assert sorted(models) == sorted(ZOO)


@pytest.mark.parametrize(
    ("device", "n_cpus", "jobs"),
    [("cpu", 16, "1"), ("cuda:0", 16, "8"), ("cuda:0", 6, "3"), ("cuda:0", 1, "1")],
)
def test_on_a_gpu_models_are_compiled_side_by_side_by_half_of_the_cpus(
    device: str, n_cpus: int, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "cpu_count", lambda: n_cpus)
    given = {
        step.name: step.arguments[step.arguments.index("--jobs") + 1]
        for step in steps(tmp_path, device)
        if "--jobs" in step.arguments
    }
    assert given == dict.fromkeys(("inference", "rivals", "training", "autotuned"), jobs)


def test_a_comparison_has_less_time_than_the_run_that_contains_it(tmp_path: Path) -> None:
    for step in steps(tmp_path, "cuda:0"):
        told = step.within(80)
        if "--jobs" in step.arguments:
            assert told[-2:] == ["--minutes", "1.000"]
        assert ("--minutes" in told) == ("--jobs" in step.arguments)


@pytest.mark.parametrize("device", ["cpu"])
def test_each_step_is_a_command_with_valid_arguments(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {"bench.inference": inference, "bench.training": training, "bench.memory": memory}
    monkeypatch.setattr(
        "bench.peers.comparison.hold", lambda *_: pytest.fail("nothing is measured here")
    )
    for step in steps(tmp_path, device):
        name, *arguments = step.arguments
        if name in commands and name != "bench.memory":
            assert commands[name]([*arguments, "--minutes", "0"]) == 1  # no time for a model


def test_a_step_tells_how_it_went_and_what_it_said_if_it_failed() -> None:
    assert run(Step("good", ("this",), 1), 60).status == "passed"
    bad = run(Step("bad", ("bench.inference", "--models", "none"), 1), 60)
    assert bad.status == "failed"
    assert "no model 'none'" in bad.printed


def test_a_step_that_takes_too_long_is_cut_short() -> None:
    outcome = run(
        Step("long", ("timeit", "-n", "1", "-r", "1", "import time; time.sleep(60)"), 1), 1
    )
    assert outcome.status == "cut short"
    assert outcome.seconds < 30


def test_nothing_that_a_step_has_started_outlives_it() -> None:
    starts = "import subprocess, time; subprocess.Popen(['sleep', '60'], process_group=0)"
    outcome = run(Step("long", ("timeit", "-n", "1", "-r", "1", f"{starts}; time.sleep(60)"), 1), 3)
    assert outcome.status == "cut short"
    assert outcome.seconds < 30  # a process that holds the pipe would be waited for


def test_what_has_been_done_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        evidence, "steps", lambda out, device: [Step("one", ("this",), 1), Step("two", ("no",), 1)]
    )
    assert main(["--out", str(tmp_path), "--device", "cpu", "--minutes", "9"]) == 1
    written = json.loads((tmp_path / "cpu" / "evidence.json").read_text())["results"]["steps"]
    assert [(step["name"], step["status"]) for step in written] == [
        ("one", "passed"),
        ("two", "failed"),
    ]
    assert main(["--out", str(tmp_path), "--device", "cpu", "--minutes", "0"]) == 1
    written = json.loads((tmp_path / "cpu" / "evidence.json").read_text())["results"]["steps"]
    assert [step["status"] for step in written] == ["not reached", "not reached"]


def test_without_a_gpu_there_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--out", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())
