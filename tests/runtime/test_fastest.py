"""The fastest of several programs runs, and measuring has no side effects."""

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.devices.cpu import Cpu
from nimble_fx.ir.effects import Effects
from nimble_fx.runtime import fastest as module
from nimble_fx.runtime.fastest import (
    CLEAR_ROUNDS,
    ENOUGH_S,
    MAX_ROUNDS,
    MIN_ROUNDS,
    KernelChoice,
    fastest,
)
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from tests.support.eager import assert_same
from tests.support.fake_clock import CLOCK

SHORT, LONG = 0.01, 0.02


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "perf_counter", CLOCK.read)


class Run:
    """Takes some seconds of the clock, empties its arguments and returns its name."""

    def __init__(self, name: str, seconds: float, act: Callable[..., None] | None = None) -> None:
        self.name, self.seconds, self.act, self.n_calls = name, seconds, act, 0

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        self.n_calls += 1
        CLOCK.now += self.seconds
        if self.act is not None:
            self.act(*args)
        args.clear()
        return [self.name]


def fastest_of(
    *runs: Run, written: Sequence[int] = (), drawn_on: str = "cpu"
) -> tuple[Boxed, KernelChoice]:
    choice = KernelChoice()
    effects = Effects(written, frozenset({torch.device(drawn_on)}), may_be_more=False)
    by_name = {run.name: run for run in runs}
    return fastest("program", by_name, effects, Cpu(), choice, warnings.warn), choice


@pytest.mark.parametrize(("seconds", "winner"), [((LONG, SHORT), "b"), ((SHORT, LONG), "a")])
def test_the_fastest_runs_from_the_first_call_on(seconds: tuple[float, float], winner: str) -> None:
    one, other = Run("a", seconds[0]), Run("b", seconds[1])
    run, choice = fastest_of(one, other)
    assert (choice.winner, choice.times_ms) == (None, {})
    assert run([1]) == [winner]
    assert choice.winner == winner
    assert choice.times_ms[winner] == min(choice.times_ms.values())
    n_calls = one.n_calls + other.n_calls
    assert run([1]) == [winner]
    assert one.n_calls + other.n_calls == n_calls + 1


@pytest.mark.parametrize(
    ("seconds", "n_rounds"),
    [
        ((SHORT, SHORT), MAX_ROUNDS),
        ((SHORT, LONG), MIN_ROUNDS),
        ((ENOUGH_S, 2 * ENOUGH_S), CLEAR_ROUNDS),
        ((2 * ENOUGH_S, ENOUGH_S), CLEAR_ROUNDS),
        ((ENOUGH_S, 1.05 * ENOUGH_S), MIN_ROUNDS),
        ((1.05 * ENOUGH_S, ENOUGH_S), MIN_ROUNDS),
        ((ENOUGH_S / 16, ENOUGH_S / 16), 8),
    ],
)
def test_it_measures_for_a_second_and_long_calls_until_the_fastest_is_clear(
    seconds: tuple[float, float], n_rounds: int
) -> None:
    runs = [Run(name, each) for name, each in zip("ab", seconds, strict=True)]
    run, choice = fastest_of(*runs)
    run([1])
    n_calls = {each.name: each.n_calls - (each.name == choice.winner) for each in runs}
    assert n_calls == dict.fromkeys("ab", 1 + n_rounds)


def test_it_goes_on_if_one_is_not_the_fastest_in_each_round() -> None:
    calls = count()

    def be_late(*args: Any) -> None:
        CLOCK.now += 4 * ENOUGH_S * (next(calls) == 1)

    mostly_fast, slow = Run("a", ENOUGH_S, be_late), Run("b", 2 * ENOUGH_S)
    run, choice = fastest_of(slow, mostly_fast)
    run([1])
    assert slow.n_calls == 1 + MIN_ROUNDS
    assert choice.winner == "a"


def disturbed_run(name: str, seconds: float) -> Run:
    """A program whose every other call other work makes longer."""
    calls = count()

    def be_late(*args: Any) -> None:
        CLOCK.now += ENOUGH_S / 4 * (next(calls) % 2)

    return Run(name, seconds, be_late)


def test_on_a_busy_machine_it_measures_longer() -> None:
    steady, disturbed = Run("a", ENOUGH_S / 8), disturbed_run("b", ENOUGH_S / 8)
    run, _ = fastest_of(steady, disturbed)
    run([1])
    n_in_a_second = ENOUGH_S / (2 * ENOUGH_S / 8 + ENOUGH_S / 8)
    assert disturbed.n_calls > 1 + 4 * n_in_a_second
    assert disturbed.n_calls < MAX_ROUNDS


def test_on_a_busy_machine_too_it_stops_once_the_fastest_is_clear() -> None:
    fast, disturbed = Run("a", ENOUGH_S / 16), disturbed_run("b", ENOUGH_S / 8)
    run, choice = fastest_of(disturbed, fast)
    run([1])
    assert disturbed.n_calls == 1 + MIN_ROUNDS
    assert choice.winner == "a"


def test_the_others_are_freed() -> None:
    fast, slow = Run("fast", SHORT), Run("slow", LONG)
    run, _ = fastest_of(slow, fast)
    reference = weakref.ref(slow)
    del slow
    run([1])
    gc.collect()
    assert reference() is None


def test_arguments_random_numbers_and_written_tensors_are_as_after_one_call() -> None:
    def act(x: Tensor, y: Tensor) -> None:
        y.add_(x + torch.rand(2))

    torch.manual_seed(3)
    x, y, args = torch.ones(2), torch.zeros(2), list[Any]()
    args += [x, y]
    run, _ = fastest_of(Run("a", SHORT, act), Run("b", SHORT, act), written=[1])
    run(args)
    after = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(y, x + torch.rand(2))
    assert torch.equal(after, torch.rand(2))
    assert args == []


@pytest.mark.gpu
def test_random_numbers_of_a_gpu_are_too_though_no_argument_is_on_it() -> None:
    def act() -> None:
        torch.rand(2, device="cuda")

    torch.cuda.manual_seed(3)
    run, _ = fastest_of(Run("a", SHORT, act), Run("b", SHORT, act), drawn_on="cuda:0")
    run([])
    after = torch.rand(2, device="cuda")
    torch.cuda.manual_seed(3)
    act()
    assert torch.equal(after, torch.rand(2, device="cuda"))


def fail(*args: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("n_before", [0, 3])
def test_one_that_fails_at_any_time_is_left_out_unless_it_is_the_first(n_before: int) -> None:
    calls = count()

    def fail_late(*args: Any) -> None:
        if next(calls) >= n_before:
            fail()

    run, choice = fastest_of(Run("works", LONG), Run("fails", SHORT, fail_late))
    with pytest.warns(UserWarning, match="selected without fails: ZeroDivisionError"):
        assert run([1]) == ["works"]
    assert list(choice.times_ms) == ["works"]
    assert list(choice.left_out) == ["fails"]
    run, choice = fastest_of(Run("fails", SHORT, fail), Run("works", LONG))
    with pytest.raises(ZeroDivisionError):
        run([1])
    assert choice.winner is None


def test_calls_that_say_nothing_about_time_run_the_first_and_select_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, choice = fastest_of(Run("a", LONG), Run("b", SHORT))
    assert run([FakeTensorMode().from_tensor(torch.ones(2))]) == ["a"]
    with monkeypatch.context() as capturing:
        capturing.setattr(Cpu, "is_capturing", True)
        assert run([1]) == ["a"]
    with forward_ad.dual_level():
        assert run([forward_ad.make_dual(torch.ones(2), torch.ones(2))]) == ["a"]
    assert choice.winner is None
    assert run([1]) == ["b"]


def test_a_thread_that_comes_while_another_measures_does_not_wait_for_it() -> None:
    is_measuring, may_go_on = threading.Event(), threading.Event()

    def wait(*args: Any) -> None:
        is_measuring.set()
        assert may_go_on.wait(10)

    run, choice = fastest_of(Run("a", SHORT), Run("b", SHORT, wait))
    thread = threading.Thread(target=run, args=([1],))
    thread.start()
    assert is_measuring.wait(10)
    assert run([1]) == ["a"]
    assert choice.winner is None
    may_go_on.set()
    thread.join()
    assert set(choice.times_ms) == {"a", "b"}


def test_tensors_that_are_written_are_not_touched_while_it_measures() -> None:
    seen, y = list[float](), torch.zeros(())

    def act(x: Tensor) -> None:
        seen.append(y.item())
        x.add_(1)

    run, _ = fastest_of(Run("a", SHORT, act), Run("b", LONG, act), written=[0])
    run([y])
    assert set(seen) == {0.0}
    assert y == 1


def test_a_model_that_advances_a_position_is_called_at_the_same_one_each_time() -> None:
    seen = list[int]()

    def act(position: Tensor) -> None:
        seen.append(int(position))
        position.add_(1)

    position = torch.tensor(3)
    run, choice = fastest_of(Run("a", SHORT, act), Run("b", LONG, act), written=[0])
    run([position])
    assert set(seen) == {3}
    assert position == 4
    assert set(choice.times_ms) == {"a", "b"}


class Seen(TorchDispatchMode):
    """Counts operators."""

    n = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.n += 1
        return function(*args, **(kwargs or {}))


def test_modes_do_not_see_what_is_measured_nor_slow_it_down() -> None:
    def act(x: Tensor) -> None:
        x.neg()

    (run, _), args = fastest_of(Run("a", SHORT, act), Run("b", LONG, act)), [torch.ones(2)]
    with Seen() as mode:
        run(args)
    assert mode.n == 1


@pytest.mark.parametrize(
    "view",
    [torch.conj, lambda z: z.conj().imag, torch._neg_view, lambda z: torch._neg_view(z.conj())],
)
def test_written_inputs_are_timed_with_their_math_bits(view: Callable[[Tensor], Tensor]) -> None:
    seen = list[tuple[bool, bool]]()

    def act(x: Tensor) -> None:
        seen.append((x.is_conj(), x.is_neg()))
        x.add_(1 + 1j if x.is_complex() else 1)

    x, expected = (view(torch.full((2,), 2 + 3j)) for _ in range(2))
    run, _ = fastest_of(Run("a", SHORT, act), Run("b", LONG, act), written=[0])
    run([x])
    act(expected)
    assert set(seen) == {(expected.is_conj(), expected.is_neg())}
    assert_same(x, expected)
