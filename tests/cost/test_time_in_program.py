"""A task's time is the median of several runs of its program."""

import pytest

from nimble_fx.cost.time_in_program import MAX_RUNS, MIN_RUNS, ProgramTimes, measured_in_program
from tests.support.cost_playing import Clock, program, step


def test_of_several_runs_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seconds = Clock(monkeypatch), iter([9.0, 9.0, 4.0, 1.0, 2.0, 8.0, 3.0])

    def called(_: object) -> None:
        clock.now += next(seconds)

    assert measured_in_program(program([step("t", called, "x")])).seconds == {"t": 3.0}


@pytest.mark.parametrize(("seconds", "n_runs"), [(1.0, MIN_RUNS), (1e-9, MAX_RUNS), (0.025, 10)])
def test_it_runs_for_about_so_long_but_not_too_often(
    seconds: float, n_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, n_calls = Clock(monkeypatch), 0

    def called(_: object) -> None:
        nonlocal n_calls
        n_calls += 1
        clock.now += seconds

    measured_in_program(program([step("t", called, "x")]))
    assert n_calls in (n_runs + 1, n_runs + 2)


def test_what_raises_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(_: object) -> None:
        raise IndexError("out of range\nof it")

    clock = Clock(monkeypatch)
    found = measured_in_program(
        program([step("bad", raising, "x"), step("good", clock.taking(1.0), "x")])
    )
    assert found == ProgramTimes({"good": 1.0}, {"bad": "IndexError: out of range"})
