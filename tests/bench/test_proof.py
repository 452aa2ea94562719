"""What bench.proof counts, and what it does when something fails."""

from pathlib import Path

import pytest

from bench import mutation_trials
from bench.mutation_trials import (
    N_ORDERS,
    Tried,
    judge_mutants,
    judge_texts,
    play_broken_sums,
    try_programs,
)
from bench.proof import targets, text_rows
from tests.grammar import AtenProgram
from tests.support.judges import Count, TextCount
from tests.support.trials import Trial


def two_branches() -> Trial:
    lines = (
        "t0 = aten.relu.default(m0)",
        "t1 = aten.tanh.default(m0)",
        "t2 = aten.add.Tensor(t0, t1)",
    )
    return Trial(AtenProgram((("m0", "m"),), lines, ("t2",)))


def test_each_program_is_counted_with_its_orders() -> None:
    counts, _ = try_programs(20, first_seed=1)
    assert (counts.n_programs, counts.n_schedules, counts.wrong) == (20, 20, [])
    assert counts.n_interleavings == 20 * N_ORDERS
    assert counts.streams.total() == 20


def test_a_wrong_result_ends_it_and_is_left_as_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def is_never_right(self: Trial, n_orders: int) -> None:
        raise AssertionError("wrong")

    monkeypatch.setattr(Trial, "check", is_never_right)
    counts, _ = try_programs(20, first_seed=1)
    assert counts.wrong
    assert counts.n_schedules == 0
    text = counts.leave_failure(tmp_path).read_text()
    assert "Trial(program" in text
    compile(text, "wrong_program.py", "exec")
    unmet = {target.name for target in targets(counts, judge_mutants([], 0), {}, [], [])}
    assert "results that are not eager's" in unmet


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
    *_, (name, made, broken, caught, alone) = text_rows(counts)
    assert name == "all"
    assert int(made) > int(broken) == int(caught) == int(alone) > 0


def test_broken_sums_are_counted() -> None:
    counts = play_broken_sums(10, first_seed=3)
    assert counts.played == counts.wrong > 0


def test_a_miss_of_the_verifier_is_a_target_that_is_not_met() -> None:
    judged = judge_mutants([], 0)
    judged.counts["wait deleted"] = Count(made=2, broken=2, caught=1, visible=2, seen=2)
    texts = {"join moved": TextCount(made=1, broken=1, missed=["it"])}
    found = targets(Tried(), judged, texts, [], [])
    unmet = [target.name for target in found if not target.met]
    assert "broken schedules that the verifier misses" in unmet
    assert "broken texts that the verifier misses" in unmet
