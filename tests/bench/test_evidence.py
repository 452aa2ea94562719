"""Evidence is gathered step by step; a step that fails or takes too long does not end it."""

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import SIGTERM, getsignal, signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import evidence
from bench.evidence import MIN_SECONDS, Step, main, run, steps
from bench.models.registry import ZOO

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


def test_a_step_that_knows_its_time_has_less_than_the_run_that_contains_it(tmp_path: Path) -> None:
    for step in steps(tmp_path, "cuda:0"):
        told = step.within(80)
        assert (told[-2:] == ["--minutes", "1.000"]) == step.takes_minutes
        assert ("--minutes" in told) == step.takes_minutes


@given(st.floats(0, 1), st.floats(0, 1000))
def test_a_step_has_its_share_or_enough_to_start_and_never_more_than_is_left(
    share: float, left: float
) -> None:
    seconds = Step("any", (), share).seconds(left)
    assert seconds <= left
    assert (seconds >= MIN_SECONDS) == (left >= MIN_SECONDS)
    assert seconds in (0, MIN_SECONDS, share * left)


def test_in_the_usual_time_all_steps_but_the_last_are_reached_if_all_use_theirs(
    tmp_path: Path,
) -> None:
    left, given = 8 * 60.0, {}
    for step in steps(tmp_path, "cuda:0"):
        given[step.name] = step.seconds(left)
        left -= given[step.name]
    assert [name for name, seconds in given.items() if not seconds] == ["autotuned"]


class BegunError(Exception):
    """A command has accepted its arguments."""


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("inference", "bench.peers.comparison.chosen"),
        ("rivals", "bench.peers.comparison.chosen"),
        ("overhead", "bench.overhead.overhead"),
        ("simulation", "bench.simulation.chosen"),
        ("training", "bench.peers.comparison.chosen"),
        ("memory", "bench.memory.chosen"),
        ("autotuned", "bench.peers.comparison.chosen"),
    ],
)
def test_each_step_is_a_command_with_valid_arguments(
    name: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object, **__: object) -> None:
        raise BegunError

    (step,) = (each for each in steps(tmp_path, "cpu") if each.name == name)
    module, *arguments = step.within(80)
    main: Callable[[Sequence[str]], int] = importlib.import_module(module).main
    monkeypatch.setattr(first, begin)
    with pytest.raises(BegunError):
        main(arguments)


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


def test_a_step_that_the_system_kills_has_failed() -> None:
    killed = "import os; os.kill(os.getpid(), 9)"
    outcome = run(Step("memory", ("timeit", "-n", "1", "-r", "1", killed), 1), 60)
    assert outcome.status == "failed"


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
