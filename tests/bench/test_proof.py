"""`bench.proof` makes tables and targets from counts."""

import argparse
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.proof import Counts, counted, mutant_rows, targets, text_rows

NO_VERDICTS = ("made", "broken", "caught", "false_alarms", "visible", "seen", "phantoms")


def counts(**total: int) -> dict[str, Any]:
    """Those of nothing, but for the mutants' total."""
    kept = {**dict.fromkeys(NO_VERDICTS, 0), **total}
    by_kind = {"counts": {"wait deleted": kept}, "played": {"wait deleted": 2}, "wrong": {}}
    return {
        "programs": {"n_schedules": 2000, "n_interleavings": 20_000, "wrong": []},
        "mutants": {"by_kind": by_kind, "total": kept},
        "texts": {},
    }


def unmet(found: Counts) -> list[str]:
    return [target.name for target in targets(found, [], []) if not target.met]


def test_where_nothing_is_missed_all_targets_are_met() -> None:
    assert unmet(counts(made=2, broken=2, caught=2, visible=2, seen=2)) == []


def test_a_miss_of_the_verifier_is_a_target_that_is_not_met() -> None:
    missed = counts(made=2, broken=2, caught=1, visible=2, seen=2)
    text = {"made": 1, "broken": 1, "caught": 0, "caught_alone": 0, "missed": ["it"]}
    assert unmet({**missed, "texts": {"join moved": text}}) == [
        "broken schedules that the verifier misses",
        "broken texts that the verifier misses",
    ]


def test_a_wrong_result_is_a_target_that_is_not_met() -> None:
    found = counts()
    found["programs"] |= {"n_schedules": 1999, "wrong": ["a script"]}
    assert unmet(found) == ["results that are not eager's", "programs short of 2,000"]


def test_all_kinds_are_added_up() -> None:
    text = {"made": 4, "broken": 3, "caught": 3, "caught_alone": 2, "missed": ["it"]}
    *_, last = text_rows({"join moved": text, "join dropped": text})
    assert last == ["all", "8", "6", "6", "4"]
    *_, last = mutant_rows(counts(made=2, broken=2, caught=2, visible=1, seen=1)["mutants"])
    assert last == ["all", "2", "2", "2", "0", "1 of 1", "0 of 2"]


def test_the_counts_are_those_of_the_tests_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []

    def ran(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, 0, stdout=b'{"sums": {}}')

    monkeypatch.setattr(subprocess, "run", ran)
    args = argparse.Namespace(programs=7, seed=1, mutants=2, sums=5, failures=tmp_path)
    assert counted(args) == {"sums": {}}
    assert commands == [
        [
            *("-m", "tests.mutation_trials", "--programs", "7", "--seed", "1", "--mutants", "2"),
            *("--sums", "5", "--failures", str(tmp_path)),
        ]
    ]
