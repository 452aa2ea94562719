"""Triton kernels that a model launches itself: on the schedule's streams, captured, in place."""

import copy
import os
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

import nimble_fx
from nimble_fx.torch_internals.operators import KERNELS

_IS_STAND_IN = "STANDIN_MODE" in os.environ
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        _IS_STAND_IN and "STANDIN_TRITON" not in os.environ, reason="needs STANDIN_TRITON=1"
    ),
]
NIMBLE: dict[str, Any] = {"policy": "nimble", "on_fallback": "error"}


@triton.jit  # type: ignore[untyped-decorator]
def scaled_sum(x, y, out, n, alpha, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.load(x + i, mask=i < n) + alpha * tl.load(y + i, mask=i < n)
    tl.store(out + i, total, mask=i < n)


@triton.jit  # type: ignore[untyped-decorator]
def add_in_place(x, y, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.autotune(  # type: ignore[untyped-decorator]
    configs=[triton.Config({"block": 16}), triton.Config({"block": 32})], key=["n"]
)
@triton.jit  # type: ignore[untyped-decorator]
def doubled(x, out, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def scaled(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    out = torch.empty_like(x)
    scaled_sum[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), alpha, block=32)
    return out


class Branches(nn.Module):
    """Two branches that end with a kernel, beside a buffer that a kernel adds to."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(5, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = scaled(self.left(x), x, 2.0).relu()
        right = scaled(x, self.right(x), 3.0).sigmoid()
        before = self.total.sum()
        add_in_place[(triton.cdiv(x.numel(), 32),)](self.total, left, x.numel(), block=32)
        return left + right, before + self.total.mean()


def kernels_of(program: nimble_fx.Program) -> list[str]:
    tasks = program.graph.launching
    return [t.name for t in tasks if getattr(t.target, "namespace", "") == KERNELS]


@pytest.mark.parametrize("dynamic", [False, True])
def test_they_are_captured_on_several_streams_and_write_in_place(dynamic: bool) -> None:
    model = Branches().cuda()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble", options=NIMBLE, dynamic=dynamic)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(5, 8, device="cuda")
            torch.testing.assert_close(compiled(x), eager(x))
            torch.testing.assert_close(model.total, eager.total)
    (program,) = nimble_fx.programs()
    assert len(kernels_of(program)) == 3
    assert program.graph.n_streams > 1
    assert program.status.frozen
    targets = {task.target for task in program.graph.launching}
    assert not {torch.ops.aten.clone.default, torch.ops.aten.copy_.default} & targets
    assert "def add_in_place" in program.kernel_source("add_in_place")


def test_a_kernel_of_a_part_of_a_tensor_leaves_the_rest() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        add_in_place[(1,)](x[1], y, 8, block=8)
        add_in_place[(1,)](x.view(-1)[16:], y, 8, block=8)
        return x * 2

    compiled = torch.compile(program, backend="nimble", options=NIMBLE)
    x = torch.randn(3, 8, device="cuda")
    expected = x.clone()
    with torch.no_grad():
        for _ in range(3):
            y = torch.randn(8, device="cuda")
            torch.testing.assert_close(compiled(x, y), program(expected, y))
            torch.testing.assert_close(x, expected)


def test_a_kernel_that_triton_tunes_has_a_grid_for_each_configuration() -> None:
    def program(x: Tensor) -> Tensor:
        out, n = torch.empty_like(x), x.numel()
        doubled[lambda meta: (triton.cdiv(n, meta["block"]),)](x, out, n)
        return out + x.relu()

    compiled = torch.compile(program, backend="nimble", options=NIMBLE)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 8, device="cuda")
            torch.testing.assert_close(compiled(x), x * 2 + x.relu())


def test_options_of_a_launch_and_numbers_by_symbolic_sizes_are_those_of_eager() -> None:
    """Dynamo makes a new tuner for a launch with options; its operator is the same."""

    def program(x: Tensor) -> Tensor:
        for _ in range(2):
            out, n = torch.empty_like(x), x.numel()
            grid = (triton.cdiv(n, 32),)
            scaled_sum[grid](x, x, out, n, n**-0.5, block=32, num_warps=8)
            x = out
        return x

    targets = set()
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(program, backend="nimble", options=NIMBLE, dynamic=True)
        with torch.no_grad():
            for n in (5, 6):
                x = torch.randn(n, 8, device="cuda")
                torch.testing.assert_close(compiled(x), program(x))
        (graph,) = (p.graph for p in nimble_fx.programs())
        targets |= {task.target for task in graph.launching if "scaled" in task.name}
    assert len(targets) == 1


class Doubled(torch.autograd.Function):
    """A kernel with a backward that is one too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return scaled(x, y, 2.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        zeros = torch.zeros_like(gradient)
        return scaled(gradient, zeros, 0.0), scaled(zeros, gradient, 2.0)


def test_they_run_in_training() -> None:
    layer = nn.Linear(8, 8).cuda()
    eager = copy.deepcopy(layer)

    def loss(layer: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = Doubled.apply(layer(x), layer(x).relu())
        return result.square().sum()

    compiled = torch.compile(loss, backend="nimble", options=NIMBLE)
    for _ in range(3):
        x = torch.randn(5, 8, device="cuda")
        results = compiled(layer, x), loss(eager, x)
        for result in results:
            result.backward()
        torch.testing.assert_close(*results)
    for ours, theirs in zip(layer.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert all(map(kernels_of, nimble_fx.programs()))


def test_a_program_outlives_the_reset_that_forgets_its_kernels() -> None:
    x, y = torch.randn(2, 5, 8, device="cuda")
    run = nimble_fx.compile(lambda x, y: scaled(x, y, 2.0), (x, y), guards=False, freeze=False)
    torch.compiler.reset()
    other = nimble_fx.compile(lambda x: add_in_place[(2,)](x, x, 40, block=32), x.clone())
    torch.testing.assert_close(run(x, y), x + 2 * y)
    del other


def test_inductors_kernels_are_left_out_with_a_warning() -> None:
    options: dict[str, Any] = {"kernels": "inductor", "policy": "nimble"}
    compiled = torch.compile(Branches().cuda(), backend="nimble", options=options)
    with (
        torch.no_grad(),
        pytest.warns(nimble_fx.NimbleWarning, match="Triton kernel of the model writes"),
    ):
        compiled(torch.randn(5, 8, device="cuda"))


def test_a_program_with_one_cannot_be_saved(tmp_path: Any) -> None:
    compiled = torch.compile(Branches().cuda(), backend="nimble", options=NIMBLE)
    with torch.no_grad():
        compiled(torch.randn(5, 8, device="cuda"))
    (program,) = nimble_fx.programs()
    with pytest.raises(nimble_fx.FileError, match="kernel of this process"):
        program.save(tmp_path / "program.json")
