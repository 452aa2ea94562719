"""Failures that fuzzing finds are written as files that reproduce them."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.fuzz import Fuzzer, _script_of_life, _script_of_test, fuzz, report

pytestmark = pytest.mark.slow


@settings(print_blob=True, database=None)
@given(st.integers())
def holds_up_to_a_thousand(n: int) -> None:
    assert n <= 1000


class HoldsTwice(RuleBasedStateMachine):
    """The third step fails."""

    n = 0

    @rule()
    def step(self) -> None:
        self.n += 1
        assert self.n < 3


def run_again(path: Path) -> str:
    """What the file prints as it fails."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr


def test_a_failing_property_leaves_a_file_that_fails_the_same_way(tmp_path: Path) -> None:
    fuzzer, name = Fuzzer(tmp_path), "holds_up_to_a_thousand"
    fuzzer.run(name, holds_up_to_a_thousand, partial(_script_of_test, __name__, name))
    assert "n=1001" in fuzzer.failures[name].read_text()
    assert "assert n <= 1000" in run_again(fuzzer.failures[name])


def test_a_failing_life_leaves_a_file_that_takes_the_same_steps(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path)
    script = partial(_script_of_life, __name__, "HoldsTwice")
    fuzzer.run("life", partial(run_state_machine_as_test, HoldsTwice), script)
    assert fuzzer.failures["life"].read_text().count("    state.step()\n") == 3
    assert "assert self.n < 3" in run_again(fuzzer.failures["life"])


def test_no_time_is_no_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuzzer = fuzz(0, tmp_path)
    report(fuzzer)
    assert not fuzzer.examples
    assert "0 failed" in capsys.readouterr().out


def test_each_run_draws_other_examples() -> None:
    """Unlike the tests, from whose profile of hypothesis others inherit."""
    assert settings.get_profile("nimble").derandomize
    assert not settings.get_profile("fuzz").derandomize
