"""Of the schedules that could be captured the fastest wins, and only clearly over one stream."""

from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.candidates import MARGIN
from nimble_fx.errors import StateError
from nimble_fx.launch import Launcher
from nimble_fx.recording import Recording
from nimble_fx.trial import N_REPLAYS, N_ROUNDS, Times, Trial, fastest


def launcher(n_streams: int, *, mutates: bool = False) -> Launcher:
    """As much of one as a trial looks at."""
    graph = SimpleNamespace(n_streams=n_streams)
    return cast(Launcher, SimpleNamespace(graph=graph, mutates=mutates))


class Bench:
    """Captures that take so long; None cannot be captured."""

    def __init__(self, *took: float | None, mutates: bool = False) -> None:
        self.launchers = [launcher(len(took) - i, mutates=mutates) for i in range(len(took))]
        self.took = took
        self.replayed: list[tuple[int, int]] = []
        self.decided: list[tuple[int, Times]] = []

    def hold(self) -> Launcher:
        trial = Trial(self.launchers, lambda *decision: self.decided.append(decision))
        return trial.hold(self.record, self.time_us)

    def record(self, launcher: Launcher) -> Recording:
        i = self.launchers.index(launcher)
        if self.took[i] is None:
            raise RuntimeError(f"schedule {i} does not fit into memory")
        return cast(Recording, i)

    def time_us(self, recording: Recording, n: int) -> float:
        i = cast(int, recording)
        self.replayed.append((i, n))
        took = self.took[i]
        assert took is not None
        return took


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=4))
def test_the_winner_is_the_fastest_unless_the_serial_one_is_nearly_as_fast(
    took: list[float],
) -> None:
    bench = Bench(*took)
    winner = bench.launchers.index(bench.hold())
    best, serial = min(took), took[-1]
    expected = best if best <= (1 - MARGIN) * serial else serial
    assert took[winner] == expected
    assert bench.decided == [(winner, took)]


def test_schedules_are_timed_in_turn_so_that_all_meet_the_same_noise() -> None:
    bench = Bench(3.0, 2.0, 4.0)
    bench.hold()
    assert [i for i, _ in bench.replayed] == [0, 1, 2] * (1 + N_ROUNDS)
    assert {n for _, n in bench.replayed} == {N_REPLAYS}


def test_what_changes_the_models_state_is_replayed_once_at_a_time() -> None:
    bench = Bench(3.0, 2.0, mutates=True)
    bench.hold()
    assert {n for _, n in bench.replayed} == {1}


def test_a_schedule_that_cannot_be_captured_does_not_run_the_others_do() -> None:
    bench = Bench(None, 2.0, 3.0)
    assert bench.hold() is bench.launchers[1]
    assert bench.decided == [(1, [None, 2.0, 3.0])]


def test_without_the_serial_one_the_fastest_of_the_others_wins() -> None:
    assert (bench := Bench(2.5, 2.49, None)).hold() is bench.launchers[1]


def test_if_none_can_be_captured_the_first_error_is_the_programs() -> None:
    bench = Bench(None, None)
    with pytest.raises(RuntimeError, match="schedule 0"):
        bench.hold()
    assert not bench.decided


def test_a_state_that_is_lost_ends_the_trial() -> None:
    bench = Bench(1.0, 2.0)

    def record(launcher: Any) -> Recording:
        raise StateError("buffers")

    with pytest.raises(StateError):
        Trial(bench.launchers, lambda *_: None).hold(record, bench.time_us)


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(0.5, 1.5)), min_size=3, max_size=9))
def test_a_device_that_slows_down_for_a_while_does_not_decide(
    rounds: list[tuple[float, float]],
) -> None:
    slowness = [slow for slow, _ in rounds]
    ours, serial = [0.9 * slow for slow in slowness], slowness
    assert fastest({0: ours, 1: serial}, serial=1) == 0
    level = [slow * ratio for slow, ratio in rounds]
    winner = fastest({0: level, 1: serial}, serial=1)
    ratio = median(ratio for _, ratio in rounds)
    assert winner == 1 or ratio <= 1 - MARGIN + 1e-9
