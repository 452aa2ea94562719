"""The CUDA device: captured, replayed, compared with eager. Needs a GPU."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.cuda import Cuda
from tests.support.eager import assert_inference_is_eagers, assert_same, assert_training_is_eagers
from tests.support.models import CASES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("freeze", [True, False])
def test_inference_is_eagers(name: str, freeze: bool) -> None:
    options: dict[str, Any] = {"policy": "nimble", "freeze": freeze}
    assert_inference_is_eagers(CASES[name], options, n_calls=4, device="cuda")
    if freeze:
        assert all(program.status.n_captures for program in nimble_fx.programs())


@pytest.mark.parametrize("name", ["googlenet", "transformer_dropout", "tables"])
def test_training_is_eagers(name: str) -> None:
    assert_training_is_eagers(CASES[name], n_steps=4, device="cuda")
    assert all(program.status.n_captures for program in nimble_fx.programs())


def test_the_same_kernels_on_one_stream_give_the_same_bits() -> None:
    model = CASES["googlenet"].model().cuda().eval()
    x = torch.randn(2, 3, 16, 16, device="cuda")
    results = []
    for policy in ("nimble", "critical-path", "serial"):
        torch.compiler.reset()
        with torch.no_grad():
            compiled = torch.compile(model, backend="nimble", options={"policy": policy})
            results.append([compiled(x) for _ in range(20)])
    assert all(torch.equal(a, results[-1][0]) for result in results for a in result)


class Mixed(nn.Module):
    """Indices made on the CPU, and a scale, a position and indices given there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.own = torch.tensor(0.25)

    def forward(
        self, x: Tensor, scale: Tensor, position: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        where = torch.arange(2) + position
        y = (torch.relu(x @ self.weight) * scale + torch.sigmoid(x) * self.own)[where]
        i, j = torch.tril_indices(4, 4, -1)
        return (y + x[rows] * scale).sum() * x[i, j], position + 1


@pytest.mark.parametrize("is_training", [False, True])
def test_a_model_that_takes_tensors_of_the_cpu_is_frozen_and_computes_what_eager_does(
    is_training: bool,
) -> None:
    model = Mixed().cuda()
    eager, compiled = copy.deepcopy(model), torch.compile(model, backend="nimble")
    with torch.set_grad_enabled(is_training):
        for k in range(4):
            numbers = torch.tensor(0.5 + k), torch.tensor(k % 3), torch.tensor([k % 4, 1])
            inputs = torch.randn(4, 4).cuda(), *numbers
            ours, eagers = compiled(*inputs), eager(*inputs)
            assert_same(ours, eagers)
            if is_training:
                for result in (ours, eagers):
                    result[0].sum().backward()
                assert_same(model.weight.grad, eager.weight.grad)
    assert nimble_fx.fallbacks() == ()
    assert all(program.status.frozen for program in nimble_fx.programs())


class TwoOutputs(nn.Module):
    """Two branches and their sum; the branches are outputs too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = torch.relu(self.a(x)), torch.sigmoid(self.b(x))
        return a, b, (a + 1) * (b + 2)


Unfrozen = tuple[nn.Module, Callable[[Tensor], tuple[Tensor, ...]]]


@pytest.fixture
def unfrozen() -> Unfrozen:
    """A model, and its compiled form, which launches its kernels on two streams in each call."""
    model = TwoOutputs().cuda()
    options: dict[str, Any] = {"freeze": False, "policy": "nimble"}
    compiled = torch.compile(model, backend="nimble", options=options)
    with torch.no_grad():
        compiled(torch.randn(64, 64, device="cuda"))
    torch.cuda.synchronize()
    (program,) = nimble_fx.programs()
    assert program.graph.n_streams == 2
    return model, compiled


def assert_as_eager_on_several_streams(
    unfrozen: Unfrozen, reading: Callable[[tuple[Tensor, ...]], Any]
) -> None:
    """Calls it on six streams; what is read from the outputs, which are then dropped, is right."""
    model, compiled = unfrozen
    inputs = [torch.randn(64, 64, device="cuda") for _ in range(6)]
    callers = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results = []
    with torch.no_grad():
        for x, caller in zip(inputs, callers, strict=True):
            with caller:
                results.append(reading(compiled(x)))
        for i in reversed(range(len(inputs))):
            callers[i].synchronize()
            with callers[i]:
                assert_same(results[i], reading(model(inputs[i])))


def test_calls_on_several_streams_do_not_overwrite_each_others_memory(unfrozen: Unfrozen) -> None:
    assert_as_eager_on_several_streams(unfrozen, lambda outputs: outputs[2])


def test_an_output_that_is_dropped_is_not_overwritten_before_it_is_read(unfrozen: Unfrozen) -> None:
    assert_as_eager_on_several_streams(unfrozen, lambda outputs: sum(x.sum() for x in outputs))


class Sums(nn.Module):
    """Saves results for its backward, and has as many that it does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.a(x) + self.b(x))
        return x


def test_what_a_forward_saves_stays_while_the_forward_of_another_size_runs() -> None:
    model = Sums().cuda()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble", dynamic=True, options={"policy": "nimble"})
    inputs = [torch.randn(n, 64, device="cuda") for n in (48, 32, 16)]
    for x in inputs:
        compiled(x).sum().backward()
    for order in (inputs, inputs[::-1]):
        losses = [(compiled(x).sum(), eager(x).sum()) for x in order]
        for ours, eagers in losses:
            for net, loss in ((model, ours), (eager, eagers)):
                net.zero_grad()
                loss.backward()
            assert_same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])


def test_programs_on_streams_of_their_own_draw_what_eager_draws() -> None:
    """Each replay writes the generator's state to memory, which before PyTorch 2.13 all share."""
    programs = [nn.Dropout(p).cuda() for p in (0.3, 0.5, 0.7)]
    compiled = [torch.compile(model, backend="nimble") for model in programs]
    streams = [torch.cuda.Stream() for _ in programs]
    x = torch.ones(64, device="cuda")
    torch.cuda.synchronize()
    drawn: list[list[Tensor]] = []
    ways: list[list[Any]] = [compiled, [*programs]]
    with torch.no_grad():
        for calls in ways:
            torch.manual_seed(0)
            drawn.append([])
            for _ in range(5):
                for stream, call in zip(streams, calls, strict=True):
                    with torch.cuda.stream(stream):
                        drawn[-1].append(call(x))
    torch.cuda.synchronize()
    assert_same(*drawn)


def test_a_loaded_program_is_frozen_and_gives_the_models_bits(tmp_path: Path) -> None:
    model, x = CASES["branchy"].model().cuda(), torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        expected = torch.compile(model, backend="nimble")(x)
    program = nimble_fx.load(nimble_fx.programs()[-1].save(tmp_path / "program.json"))
    run = program.bind(model)
    assert all(torch.equal(run(x)[0], expected) for _ in range(3))
    assert run.status.frozen


def test_so_is_a_plan_for_this_device() -> None:
    model, x = CASES["branchy"].model().cuda().eval(), torch.randn(2, 4, device="cuda")
    run = nimble_fx.plan(model, x, device="cuda").bind(model)
    assert_same(run(x), [model(x).detach()])
    assert run.status.frozen


def test_a_larger_product_takes_longer_and_the_current_stream_stays() -> None:
    small, large = torch.randn(64, 64, device="cuda"), torch.randn(4096, 4096, device="cuda")
    device, stream = Cuda.get(torch.device("cuda", 0)), torch.cuda.current_stream()
    assert 0 < device.seconds([lambda: small @ small]) < device.seconds([lambda: large @ large])
    assert torch.cuda.current_stream() == stream


def test_what_cannot_be_captured_is_an_error_and_leaves_the_current_stream() -> None:
    device, stream = Cuda.get(torch.device("cuda", 0)), torch.cuda.current_stream()
    x = torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError):
        device.seconds([x.item])
    assert torch.cuda.current_stream() == stream
    assert x.item() == 1


def test_a_device_without_an_index_is_the_current_one() -> None:
    caller, side = Cuda(torch.device("cuda")).streams(2)
    assert caller == torch.cuda.current_stream() != side
