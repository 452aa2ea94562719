"""Triton's kernels, launched on the streams of a schedule and captured."""

import copy
import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.torch_internals.operators import KERNELS
from tests.support.models import CASES

_IS_STAND_IN = "STANDIN_MODE" in os.environ
_KERNELS_COMPUTE = find_spec("triton") and (not _IS_STAND_IN or "STANDIN_TRITON" in os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not _KERNELS_COMPUTE, reason="needs Triton, on the stand-in STANDIN_TRITON=1"
    ),
]
OPTIONS: dict[str, Any] = {"kernels": "inductor", "policy": "nimble", "on_fallback": "error"}


class Branches(nn.Module):
    """Layers side by side, between which Inductor fuses what is pointwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        branches = [torch.relu(layer(x)) * 2 for layer in self.layers]
        return self.norm(torch.cat(branches, 1).view(x.shape[0], 3, 16).sum(1))


def kernels_of(program: nimble_fx.Program) -> list[str]:
    tasks = program.graph.launching
    return [t.name for t in tasks if getattr(t.target, "namespace", "") == KERNELS]


def test_kernels_are_captured_on_several_streams_and_compute_what_eager_does() -> None:
    model = Branches().cuda()
    run = torch.compile(model, backend="nimble", options=OPTIONS)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 16, device="cuda")
            torch.testing.assert_close(run(x), model(x))
    (program,) = nimble_fx.programs()
    assert program.status.n_captures == 1
    assert program.graph.n_streams > 1
    assert all(name.startswith("triton_") for name in kernels_of(program))
    assert "@triton.jit" in program.kernel_source(kernels_of(program)[0])


def test_branches_that_are_concatenated_stay_side_by_side() -> None:
    """Inductor alone has each write into the one result, which orders them."""
    model, x = CASES["tables"].model().cuda(), CASES["tables"].inputs()[0].cuda()
    run = torch.compile(model, backend="nimble", options=OPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    (program,) = nimble_fx.programs()
    assert len(kernels_of(program)) == program.graph.n_streams == 12


def test_one_program_with_symbolic_sizes_is_captured_for_each_size() -> None:
    model = Branches().cuda()
    run = torch.compile(model, backend="nimble", dynamic=True, options=OPTIONS)
    with torch.no_grad():
        for n in (4, 7, 4, 9):
            x = torch.randn(n, 16, device="cuda")
            torch.testing.assert_close(run(x), model(x))
    (program,) = nimble_fx.programs()
    assert program.sizes
    assert program.status.n_captures == 3
    assert kernels_of(program)


def test_training_is_eagers() -> None:
    model = Branches().cuda()
    eager = copy.deepcopy(model)
    run = torch.compile(model, backend="nimble", options=OPTIONS)
    for _ in range(2):
        x = torch.randn(4, 16, device="cuda")
        for net in (run, eager):
            net(x).square().mean().backward()
    for ours, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)
    assert all(kernels_of(program) for program in nimble_fx.programs())


@pytest.mark.parametrize("freeze", [True, False])
def test_inputs_at_any_address_are_read_and_written(freeze: bool) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        y.mul_(x.sin())
        return (x + 1).relu()

    run = torch.compile(program, backend="nimble", options={**OPTIONS, "freeze": freeze})
    for offset in (0, 1, 3):
        memory = torch.randn(40, device="cuda")
        ours, eagers = (memory.clone() for _ in range(2))
        result, expected = (
            function(each[offset : offset + 16].view(4, 4), each[20 : 20 + 16].view(4, 4).t())
            for function, each in ((run, ours), (program, eagers))
        )
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("freeze", [True, False])
def test_the_fastest_kernels_run_and_the_others_are_freed(
    freeze: bool,
) -> None:
    model = Branches().cuda()
    model.register_buffer("calls", torch.zeros(1, device="cuda"))
    eager = copy.deepcopy(model)

    def counted(net: nn.Module, x: Tensor) -> Tensor:
        net.get_buffer("calls").add_(torch.rand(1, device="cuda"))
        return net(x) * net.get_buffer("calls")

    options = {**OPTIONS, "kernels": "auto", "freeze": freeze}
    run = torch.compile(counted, backend="nimble", options=options)
    xs = torch.randn(3, 4, 16, device="cuda")
    results = []
    for function, net in ((run, model), (counted, eager)):
        torch.cuda.manual_seed(7)
        for x in xs:
            results.append(function(net, x))
            results[-1].square().mean().backward()
    torch.testing.assert_close(results[:3], results[3:])
    torch.testing.assert_close(model.get_buffer("calls"), eager.get_buffer("calls"))
    for ours, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)
    programs = nimble_fx.programs()
    assert len(programs) == 2
    for program in programs:
        assert program.kernel_choice is not None
        assert len(program.kernel_choice.times_ms) == 2
        assert program.status.n_graphs == freeze  # one of copies of what it writes is gone
