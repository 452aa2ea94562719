"""The counts of trials, and what remains when something fails."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests import mutation_trials
from tests.grammar import AtenProgram
from tests.mutation_trials import (
    N_ORDERS,
    judge_mutants,
    judge_texts,
    main,
    play_broken_sums,
    try_programs,
)
from tests.support.trials import Trial, trials

N = 8
"""Programs that are drawn."""


def two_branches() -> Trial:
    lines = (
        "t0 = aten.relu.default(m0)",
        "t1 = aten.tanh.default(m0)",
        "t2 = aten.add.Tensor(t0, t1)",
    )
    return Trial(AtenProgram((("m0", "m"),), lines, ("t2",)))


def test_each_program_is_counted_with_its_orders() -> None:
    counts, _ = try_programs(N, first_seed=1)
    assert (counts.n_programs, counts.n_schedules, counts.wrong) == (N, N, [])
    assert counts.n_interleavings == N * N_ORDERS
    assert counts.streams.total() == N


def test_a_wrong_result_ends_it_and_is_left_as_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def is_never_right(self: Trial, n_orders: int) -> None:
        raise AssertionError("wrong")

    monkeypatch.setattr(Trial, "check", is_never_right)
    monkeypatch.setattr(mutation_trials, "trials", partial(trials, max_steps=2))
    counts, _ = try_programs(N, first_seed=1)
    assert counts.wrong
    assert counts.n_schedules == 0
    text = counts.leave_failure(tmp_path).read_text()
    assert "Trial(program" in text
    compile(text, "wrong_program.py", "exec")


def test_broken_schedules_are_judged_and_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_trials, "schedules_of_models", tuple)
    judged = judge_mutants([two_branches()], limit=2)
    total = judged.total
    assert total.made > total.broken == total.caught > 0
    assert judged.played.total() == total.broken
    assert 0 < judged.wrong.total() <= judged.played.total()
    assert judged.counts["wait deleted"].broken == 1


def test_broken_texts_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_trials, "schedules_of_models", tuple)
    counts = judge_texts([two_branches()], limit=3, seed=0)
    assert [count.missed for count in counts.values() if count.missed] == []
    assert counts["fork dropped"].broken == 2  # its record and its wait
    assert all(count.broken == count.caught == count.caught_alone for count in counts.values())


def test_broken_sums_are_counted() -> None:
    counts = play_broken_sums(10, first_seed=3)
    assert counts.played == counts.wrong > 0


def test_the_command_prints_the_counts_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutation_trials, "schedules_of_models", tuple)
    main(["--programs", "3", "--sums", "3", "--failures", str(tmp_path)])
    counts = json.loads(capsys.readouterr().out)
    assert counts["programs"]["n_schedules"] == sum(counts["programs"]["streams"].values()) == 3
    assert counts["mutants"]["by_kind"]["counts"].keys() >= {"wait deleted", "free earlier"}
    assert counts["mutants"]["total"]["made"] >= 0
    assert counts["texts"]["join moved"]["missed"] == []
    assert counts["sums"]["wrong"] == counts["sums"]["played"]
