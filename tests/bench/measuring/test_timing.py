"""Contestants take turns; the times are those of a clock that only their calls advance."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measuring import timing
from bench.measuring.timing import (
    MAX_CALLS,
    SAMPLE_SECONDS,
    Spread,
    calls_per_sample,
    interleaved_seconds,
    ratios,
    uncollected_seconds,
)
from tests.support.fake_clock import CLOCK


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "perf_counter", CLOCK.read)


def taking(seconds: float, calls: list[str] | None = None, name: str = "") -> Callable[[], None]:
    """A call that takes so long, and is listed."""

    def call() -> None:
        CLOCK.now += seconds
        if calls is not None:
            calls.append(name)

    return call


def test_each_takes_its_turn_in_each_round_and_the_first_one_changes() -> None:
    calls: list[str] = []
    contestants = {name: taking(1.0, calls, name) for name in "abc"}
    interleaved_seconds(contestants, rounds=4)
    turns = ["".join(calls[i : i + 6]) for i in range(0, len(calls), 6)]
    assert turns == ["aabbcc", "bbccaa", "ccaabb", "aabbcc"]


@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_sample_is_the_mean_of_its_calls_without_the_one_before_them(
    rounds: int, n_calls: int, seconds: list[int]
) -> None:
    counted: dict[str, int] = {}

    def contestant(name: str, usual: int) -> Callable[[], None]:
        def call() -> None:
            before = counted.get(name, 0) % (n_calls + 1) == 0
            counted[name] = counted.get(name, 0) + 1
            CLOCK.now += 1000 if before else usual

        return call

    contestants = {f"{i}": contestant(f"{i}", each) for i, each in enumerate(seconds)}
    samples = interleaved_seconds(contestants, rounds, n_calls)
    assert samples == {f"{i}": [pytest.approx(each)] * rounds for i, each in enumerate(seconds)}


def test_what_runs_between_rounds_is_not_timed() -> None:
    samples = interleaved_seconds({"a": taking(2.0)}, 3, after_round=taking(1000.0))
    assert samples == {"a": [pytest.approx(2.0)] * 3}


@pytest.mark.parametrize("measure", [interleaved_seconds, uncollected_seconds])
def test_python_collects_no_garbage_while_a_call_is_timed(measure: Any) -> None:
    enabled: list[bool] = []

    def call() -> None:
        enabled.append(gc.isenabled())

    measure({"a": call} if measure is interleaved_seconds else call, 2)
    assert not any(enabled)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(2 * SAMPLE_SECONDS, 1), (SAMPLE_SECONDS / 4, 4), (SAMPLE_SECONDS / 1e6, MAX_CALLS)],
)
def test_a_sample_has_calls_enough_but_not_too_many(seconds: float, expected: int) -> None:
    assert calls_per_sample(taking(seconds)) == pytest.approx(expected, abs=1)


def test_a_spread_is_of_all_samples_and_a_ratio_of_those_of_one_round() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert ratios([2.0, 9.0, 4.0], [1.0, 3.0, 8.0]) == Spread(2.0, 0.5, 3.0, 3)
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])
