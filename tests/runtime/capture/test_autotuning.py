"""The fastest schedule that could be captured wins, if it clearly beats one stream."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import StateError
from nimble_fx.runtime.capture.autotuning import (
    N_REPLAYS,
    N_ROUNDS,
    Autotuner,
    AutotuneResult,
)
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.launch import Launcher
from nimble_fx.selection.candidate import MIN_GAIN


def launcher(n_streams: int, *, mutates: bool = False) -> Launcher:
    """The attributes of a launcher that an autotuner reads."""
    graph = SimpleNamespace(name="net", n_streams=n_streams)
    return cast(Launcher, SimpleNamespace(graph=graph, mutates=mutates))


class Captured:
    """A captured graph, of which an autotuner needs the lifetime alone."""

    def __init__(self, i: int) -> None:
        self.i = i


class Bench:
    """Captures that take so long; None cannot be captured."""

    def __init__(self, *took: float | None, mutates: bool = False, failing: int = -1) -> None:
        self.launchers = [launcher(len(took) - i, mutates=mutates) for i in range(len(took))]
        self.took, self.failing = took, failing
        self.replayed: list[tuple[int, int]] = []
        self.memory: weakref.WeakSet[Captured] = weakref.WeakSet()

    def run(self) -> AutotuneResult | None:
        return Autotuner(self.launchers, lambda _: None).run(self.record, self.time_us)

    def record(self, launcher: Launcher) -> CapturedGraph:
        i = self.launchers.index(launcher)
        captured = Captured(i)
        self.memory.add(captured)
        if self.took[i] is None:
            raise RuntimeError(f"schedule {i} does not fit into memory")
        return cast(CapturedGraph, captured)

    def time_us(self, captured: CapturedGraph, n: int) -> float:
        i = cast(Captured, captured).i
        self.replayed.append((i, n))
        took = self.took[i]
        assert took is not None
        if i == self.failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return took


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """What an autotuner allocates must be freed without Python's search for cycles."""
    gc.disable()
    yield
    gc.enable()


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=4))
def test_the_winner_is_the_fastest_unless_the_serial_one_is_nearly_as_fast(
    took: list[float],
) -> None:
    result = Bench(*took).run()
    assert result is not None
    best, serial = min(took), took[-1]
    expected = best if best <= (1 - MIN_GAIN) * serial else serial
    assert took[result.winner] == expected
    assert result.times == took


def test_schedules_are_timed_in_turn_so_that_all_meet_the_same_noise() -> None:
    bench = Bench(3.0, 2.0, 4.0)
    bench.run()
    assert [i for i, _ in bench.replayed] == [2, 0, 1] * (1 + N_ROUNDS)
    assert {n for _, n in bench.replayed} == {N_REPLAYS}


def test_what_changes_the_models_state_is_replayed_once_at_a_time() -> None:
    bench = Bench(3.0, 2.0, mutates=True)
    bench.run()
    assert {n for _, n in bench.replayed} == {1}


@pytest.mark.parametrize("took", [(None, 2.0, 3.0), (2.0, None, 3.0), (None, None, 3.0)])
def test_a_schedule_that_cannot_be_captured_is_out(
    took: tuple[float | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(*took)
    with caplog.at_level("INFO", "nimble_fx"):
        result = bench.run()
    assert caplog.text.count("is left out: RuntimeError: schedule") == took.count(None)
    assert result is not None
    assert took[result.winner] == min(us for us in took if us is not None)
    assert result.times == list(took)
    assert not bench.memory


def test_a_schedule_whose_replays_fail_is_out() -> None:
    bench = Bench(1.0, 2.0, 3.0, failing=0)
    assert bench.run() == AutotuneResult(1, [None, 2.0, 3.0])
    assert not bench.memory


def test_if_nothing_can_be_timed_the_first_runs() -> None:
    assert Bench(1.0, None, failing=0).run() == AutotuneResult(0, [None, None])


def test_without_the_serial_one_the_fastest_of_the_others_wins() -> None:
    result = Bench(2.5, 2.49, None).run()
    assert result is not None
    assert result.winner == 1


def test_if_none_can_be_captured_nothing_is_decided_and_no_memory_is_held() -> None:
    bench = Bench(None, None)
    assert bench.run() is None
    assert not bench.memory


def test_a_state_that_is_lost_ends_autotuning() -> None:
    bench = Bench(1.0, 2.0)

    def record(launcher: Any) -> CapturedGraph:
        raise StateError("buffers")

    with pytest.raises(StateError):
        Autotuner(bench.launchers, lambda _: None).run(record, bench.time_us)


def test_replays_that_lose_the_state_end_autotuning_and_no_graph_lives_with_the_error() -> None:
    bench = Bench(1.0, 2.0)

    def time_us(captured: CapturedGraph, n: int) -> float:
        del captured
        raise StateError("buffers")

    with pytest.raises(StateError) as raised:
        Autotuner(bench.launchers, lambda _: None).run(bench.record, time_us)
    assert not bench.memory
    assert raised.value is not None


def test_an_error_that_somebody_keeps_holds_no_memory_of_its_capture() -> None:
    bench = Bench(None, 2.0)
    kept: list[Exception] = []

    def record(launcher: Launcher) -> CapturedGraph:
        try:
            return bench.record(launcher)
        except RuntimeError as error:
            kept.append(error)
            raise ValueError("wrapped") from error

    assert Autotuner(bench.launchers, lambda _: None).run(record, bench.time_us) is not None
    assert kept
    assert not bench.memory


def test_first_replays_which_upload_graphs_do_not_count() -> None:
    bench, calls = Bench(1.0, 2.0), Counter[int]()

    def time_us(captured: CapturedGraph, n: int) -> float:
        i = cast(Captured, captured).i
        calls[i] += 1
        return bench.time_us(captured, n) * calls[i]

    result = Autotuner(bench.launchers, lambda _: None).run(bench.record, time_us)
    later = median(range(2, N_ROUNDS + 2))
    assert result == AutotuneResult(0, [later, 2 * later])
