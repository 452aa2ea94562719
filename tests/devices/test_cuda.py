"""The CUDA device: captured, replayed, compared with eager. Needs a GPU."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.cuda import MAX_STREAMS, Cuda
from tests.support.eager import assert_inference_is_eagers, assert_same, assert_training_is_eagers
from tests.support.models import CASES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("freeze", [True, False])
def test_inference_is_eagers(name: str, freeze: bool) -> None:
    assert_inference_is_eagers(CASES[name], {"freeze": freeze}, n_calls=4, device="cuda")
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


def test_streams_are_distinct_and_shared() -> None:
    device = Cuda.get(torch.device("cuda", 0))
    assert device is Cuda.get(torch.device("cuda", 0))
    assert device.max_streams == MAX_STREAMS


def test_a_loaded_program_is_frozen_and_gives_the_models_bits(tmp_path: Path) -> None:
    model, x = CASES["branchy"].model().cuda(), torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        expected = torch.compile(model, backend="nimble")(x)
    program = nimble_fx.load(nimble_fx.programs()[-1].save(tmp_path / "program.json"))
    run = program.bind(model)
    assert all(torch.equal(run(x)[0], expected) for _ in range(3))
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
