"""Models have the kernels that are faster, and their first calls have no side effects."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.runtime import fastest as module
from nimble_fx.runtime.folding.folded_weights import FoldedWeights
from nimble_fx.runtime.launch import Launcher
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from tests.support.eager import assert_same
from tests.support.fake_clock import CLOCK


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "perf_counter", CLOCK.read)


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

    def fold(folded: FoldedWeights, weights: Sequence[Tensor]) -> Sequence[Tensor] | None:
        CLOCK.now += 9 * check_s
        return weights_of(folded, weights)

    launched, weights_of = Launcher.__call__, FoldedWeights.unless_changing
    monkeypatch.setattr(Launcher, "__call__", launch)
    monkeypatch.setattr(FoldedWeights, "unless_changing", fold)
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


@pytest.mark.parametrize("device", [{}, {"device": "virtual"}], ids=str)
def test_a_training_may_retain_its_graph(device: dict[str, Any]) -> None:
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), torch.randn(3, 8)
    compiled = torch.compile(net, backend="nimble", options={"kernels": "auto", **device})
    gradients = []
    for call in (net, compiled):
        net.zero_grad()
        y = call(x)
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*gradients)
