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
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import nimble_fx
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
from nimble_fx.runtime.folding.folded_weights import FoldedWeights
from nimble_fx.runtime.launch import Launcher
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from tests.support.eager import assert_same

SHORT, LONG = 0.01, 0.02


class Clock:
    """A clock that goes on where a run says so."""

    now = 0.0

    def read(self) -> float:
        """The seconds since it was made."""
        return self.now


CLOCK = Clock()


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


def fastest_of(*runs: Run, written: Sequence[int] = ()) -> tuple[Boxed, KernelChoice]:
    choice, effects = KernelChoice(), Effects(written, draws=True, may_be_more=False)
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
        ((SHORT, LONG), MAX_ROUNDS),
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


def test_on_a_busy_machine_it_measures_longer() -> None:
    calls = count()

    def be_late(*args: Any) -> None:
        CLOCK.now += ENOUGH_S / 4 * (next(calls) % 2)

    steady, disturbed = Run("a", ENOUGH_S / 8), Run("b", ENOUGH_S / 8, be_late)
    run, _ = fastest_of(steady, disturbed)
    run([1])
    n_in_a_second = ENOUGH_S / (2 * ENOUGH_S / 8 + ENOUGH_S / 8)
    assert disturbed.n_calls > 1 + 4 * n_in_a_second
    assert disturbed.n_calls < MAX_ROUNDS


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


class Cache(nn.Module):
    """Holds rows for three calls, no more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position", torch.tensor(0))
        self.register_buffer("rows", torch.zeros(6, 8))
        self.position: Tensor
        self.rows: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.rows.index_copy_(0, self.position + torch.arange(2), x)
        self.position += 2
        return self.rows.relu() + 1


def test_the_first_call_leaves_as_much_of_a_cache_as_eagers() -> None:
    cache, eager = Cache(), Cache()
    compiled = torch.compile(cache, backend="nimble", options={"kernels": "auto"})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 8)
            assert_same([compiled(x), cache.position], [eager(x), eager.position])
    (program,) = nimble_fx.programs()
    assert program.kernel_choice is not None
    assert program.kernel_choice.times_ms


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


def test_the_first_call_of_a_model_is_measured_without_modes() -> None:
    measured: list[int] = []

    def seconds(selection: Any, run: Boxed, args: list[Any]) -> float:
        measured.append(torch._C._len_torch_dispatch_stack())
        return 1.0

    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.ones(1, 3, 5, 5)
    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setattr(module._Selection, "_seconds", seconds)
        torch.compile(model, backend="nimble")(x)
    assert set(measured) == {0}


def test_a_custom_operator_is_called_as_often_as_the_user_calls_it() -> None:
    calls = count(1)
    with torch.library._scoped_library("fastest_test", "FRAGMENT") as library:
        library.define("counted(Tensor x) -> Tensor")
        library.impl("counted", lambda x: x + next(calls), "CPU")
        library.impl("counted", torch.empty_like, "Meta")
        counted = torch.ops.fastest_test.counted
        compiled = torch.compile(
            lambda x: counted(x).relu() * 2, backend="nimble", options={"kernels": "auto"}
        )
        assert compiled(torch.zeros(1)).item() == 2
        (program,) = nimble_fx.programs()
        assert "not Inductor's: timing would call a custom operator" in program.summary()


class Counting(nn.Module):
    """Writes to a buffer, draws random numbers, and has weights to fold."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.count = nn.Buffer(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(torch.rand(2))
        return torch.relu(self.norm(self.convolution(x))) * self.count.sum()


@pytest.mark.parametrize(("training", "device"), [(False, None), (True, "virtual")])
def test_a_model_has_the_kernels_that_its_first_call_measured(
    training: bool, device: str | None
) -> None:
    options: dict[str, Any] = {"kernels": "auto", "on_fallback": "error", "device": device}
    models, results = [Counting().train(training) for _ in range(2)], list[Any]()
    run: Any
    models[1].load_state_dict(models[0].state_dict())
    runs = torch.compile(models[0], backend="nimble", options=options), models[1]
    for run, model in zip(runs, models, strict=True):
        torch.manual_seed(5)
        with torch.set_grad_enabled(training):
            for x in torch.linspace(-1, 1, 2 * 75).view(2, 1, 3, 5, 5):
                results.append(run(x))
                if training:
                    results[-1].sum().backward()
        results.append(dict(model.state_dict()))
    torch.testing.assert_close(results[:3], results[3:], rtol=1e-4, atol=1e-4)
    programs = nimble_fx.programs()
    assert len(programs) == 1 + training
    for program in programs:
        assert program.kernel_choice is not None
        assert program.kernel_choice.winner is not None
        assert len(program.kernel_choice.times_ms) == 2
        assert f"kernels  {program.kernel_choice.winner}" in program.summary()


def test_the_backward_is_compiled_with_the_forward_whose_call_takes_long() -> None:
    """Later PyTorch would compile it beside what other threads compile, without a lock."""
    compiled = torch.compile(torch.sigmoid, backend="nimble", options={"kernels": "auto"})
    result = compiled(torch.ones(2, requires_grad=True))
    kinds = [program.name.split()[-1] for program in nimble_fx.programs()]
    assert kinds == ["(training)", "(backward)", "(backward)"]
    result.sum().backward()


@pytest.mark.parametrize("check_s", [0.0, 1.0])
def test_by_default_weights_are_folded_if_that_is_faster(
    check_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(launcher: Launcher, args: list[Any]) -> Sequence[Any]:
        CLOCK.now += len(launcher.graph.tasks)
        return launched(launcher, args)

    def fold(folded: FoldedWeights, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        CLOCK.now += 9 * check_s
        return weights_of(folded, weights)

    launched, weights_of = Launcher.__call__, FoldedWeights.__call__
    monkeypatch.setattr(Launcher, "__call__", launch)
    monkeypatch.setattr(FoldedWeights, "__call__", fold)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    compiled = torch.compile(model, backend="nimble", options={"on_fallback": "error"})
    with torch.no_grad():
        for x in torch.randn(3, 1, 3, 5, 5):
            assert_same(compiled(x), model(x))
    (program,) = nimble_fx.programs()
    assert (program.scheduled.folded is None) == bool(check_s)
    rows = ["PyTorch's, weights folded", "PyTorch's"]
    first, second = reversed(rows) if check_s else rows
    assert f"kernels  {first} " in program.summary()
    assert f" a call); {second} (" in program.summary()


def test_weights_beside_a_custom_operator_are_folded_unmeasured() -> None:
    with torch.library._scoped_library("fastest_test", "FRAGMENT") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", torch.clone, "CPU")
        library.impl("same", torch.empty_like, "Meta")
        model, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 5, 5)
        compiled = nimble_fx.compile(lambda x: torch.ops.fastest_test.same(model(x)), x)
        with torch.no_grad():
            assert_same(compiled(x), model(x))
    (program,) = compiled.programs
    assert program.scheduled.folded is not None
    assert "not PyTorch's: timing would call" in program.summary()


def test_weights_that_are_inference_tensors_are_not_folded_and_that_is_no_fallback() -> None:
    with torch.inference_mode():
        model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(1, 3, 5, 5)
        compiled = torch.compile(model, backend="nimble", options={"on_fallback": "error"})
        with pytest.warns(nimble_fx.NimbleWarning, match="without PyTorch's, weights folded: its"):
            result = compiled(x)
        assert_same(result, model(x))
    (program,) = nimble_fx.programs()
    assert program.scheduled.folded is None
    assert nimble_fx.fallbacks() == ()


def test_folded_weights_are_among_what_is_measured() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(),
        torch.ones(1, 3, 5, 5),
    )
    compiled = nimble_fx.compile(model, x, kernels="auto", on_fallback="error")
    (program,) = compiled.programs
    assert program.kernel_choice is not None
    assert set(program.kernel_choice.times_ms) == {
        "PyTorch's",
        "PyTorch's, weights folded",
        "Inductor's",
    }
    with torch.no_grad():
        assert_same(compiled(x), model(x))


def test_the_kernels_of_one_program_are_selected_for_all_sizes() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.exp() + 1).sin().sum(1)

    options: dict[str, Any] = {"kernels": "auto", "on_fallback": "error"}
    compiled = torch.compile(program, backend="nimble", dynamic=True, options=options)
    for n in (3, 5, 3):
        x = torch.randn(n, n)
        torch.testing.assert_close(compiled(x), program(x))
    (made,) = nimble_fx.programs()
    assert made.kernel_choice is not None
    assert set(made.kernel_choice.times_ms) == {"PyTorch's", "Inductor's"}


def test_where_there_is_nothing_to_select_from_it_is_not_measured() -> None:
    compiled = torch.compile(
        lambda x: x.nonzero() * 2,
        backend="nimble",
        options={"kernels": "auto", "on_fallback": "silent"},
    )
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled(torch.ones(3))
    (program,) = nimble_fx.programs()
    assert program.kernel_choice is not None
    assert program.kernel_choice.winner == "PyTorch's"
    assert (
        "kernels  PyTorch's; not Inductor's: it has sizes that are known only" in program.summary()
    )


def test_written_inputs_with_gaps_are_timed_with_their_strides() -> None:
    options: dict[str, Any] = {"kernels": "auto", "on_fallback": "error"}
    run = torch.compile(lambda x: x.add_(1).sum(0), backend="nimble", options=options)
    memory = torch.ones(4, 12)
    assert torch.equal(run(memory[:, ::2]), torch.full((6,), 8.0))
    assert memory.sum() == 4 * 12 + 4 * 6  # written once
    (program,) = nimble_fx.programs()
    assert program.kernel_choice is not None
    assert set(program.kernel_choice.times_ms) == {"PyTorch's", "Inductor's"}


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


class Conjugated(nn.Module):
    """Writes a buffer that is conjugated when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = nn.Buffer(torch.zeros(4, dtype=torch.complex64).conj())

    def forward(self, x: Tensor) -> Tensor:
        self.sum.add_(x)
        return self.sum * 2


def test_a_frozen_model_with_a_conjugated_buffer_has_the_kernels_that_were_measured() -> None:
    model, eager = Conjugated(), Conjugated()
    options: dict[str, Any] = {"kernels": "auto", "on_fallback": "error", "device": "virtual"}
    run = torch.compile(model, backend="nimble", options=options)
    with torch.no_grad():
        for x in torch.arange(16.0).view(2, 2, 4):
            z = torch.view_as_complex(x.view(4, 2).clone())
            assert_same(run(z), eager(z))
    assert_same(model.sum, eager.sum)


def test_a_conjugated_input_whose_real_part_is_written_is_timed_with_its_bit() -> None:
    def add_to_real(z: Tensor) -> Tensor:
        z.real.add_(1)
        return z * 2

    run = torch.compile(add_to_real, backend="nimble", options={"kernels": "auto"})
    z, expected = torch.full((2,), 1 + 3j).conj(), torch.full((2,), 1 + 3j).conj()
    assert_same(run(z), add_to_real(expected))
    assert_same(z, expected)
