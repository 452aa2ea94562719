"""Inductor's kernels with symbolic sizes compute what the model does at all sizes."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import NimbleWarning
from nimble_fx.torch_internals.names import pytree
from tests.support.bits import assert_same_sharing
from tests.support.inductor_kernels import compiled, kernels_of

CONVOLUTION = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()


def image(x: Tensor) -> Any:
    doubled = torch.nn.functional.interpolate(x, scale_factor=2)
    return CONVOLUTION(x).mean((2, 3)), doubled.sum(0), x.shape[2] * 2


def written(x: Tensor) -> Any:
    x.add_(1)
    padded = torch.nn.functional.pad(x, (1, 1)).cumsum(2)
    return torch.nn.functional.max_pool2d(x, 2), x.transpose(2, 3), padded.chunk(2, 3)


def table(x: Tensor) -> Any:
    halves = x.view(x.shape[0], 2, -1).sum(1)
    product = x[1:].t().mm(x[:-1])
    joined = torch.cat([x.exp(), x[:2].sin()])[1:]
    return halves, product, joined, joined.flatten()[::2], (x[:, None] - x).abs().sum(-1)


def drawn(x: Tensor) -> Any:
    return torch.nn.functional.dropout(x.exp(), 0.5) + torch.rand_like(x)


def scaled(x: Tensor) -> Any:
    larger = torch.nn.functional.interpolate(x[None], scale_factor=1.7)
    half = x[: int(x.shape[0] * 0.5)].exp() + x[math.ceil(x.shape[0] / 3)]
    return larger.sin(), half, half @ half.t()


DYNAMIC: dict[Callable[..., Any], list[tuple[int, ...]]] = {
    image: [(2, 3, 9, 9), (3, 3, 12, 12), (5, 3, 7, 7)],
    written: [(2, 3, 8, 8), (3, 3, 9, 9)],
    table: [(5, 6), (7, 8), (3, 4)],
    drawn: [(4, 5), (6, 7)],
    scaled: [(5, 6), (8, 11), (14, 4)],
}


@pytest.mark.parametrize("function", DYNAMIC)
@pytest.mark.parametrize("device", [None, "virtual"])
def test_one_program_with_symbolic_sizes_is_eagers_at_all_sizes(
    function: Callable[[Tensor], Any], device: str | None
) -> None:
    run = compiled(function, dynamic=True, device=device)
    for shape in DYNAMIC[function]:
        ours = torch.randn(shape)
        eagers = ours.clone()
        with torch.no_grad(), torch.random.fork_rng():
            expected = function(eagers)
        with torch.no_grad():
            torch.testing.assert_close(run(ours), expected)
        torch.testing.assert_close(ours, eagers)
        torch.rand(1)
    programs = nimble_fx.programs()
    assert any(map(kernels_of, programs))
    assert any(program.sizes for program in programs)
    assert {program.name for program in programs} == {function.__name__}


def rest(x: Tensor, k: int) -> Tensor:
    y = x[k:]
    return torch.cat([y @ y.new_ones(6, 3), y @ y.new_zeros(6, 2)], 1)


def strided(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.nn.functional.conv2d(x, weight, stride=2, padding=1)
    y = torch.nn.functional.group_norm(y, 2).relu()
    return y.flatten(1)  # PyTorch 2.14 promises other strides than Inductor for images


def diagonal(x: Tensor) -> Tensor:
    return x.diagonal() * 2 + 1


def summed(*xs: Tensor) -> Tensor:
    return torch.stack(xs).sum(0)


RANDN = torch.randn


CORNERS: dict[Callable[..., Any], list[tuple[Any, ...]]] = {
    rest: [(RANDN(5, 6), 2), (RANDN(5, 6), 5), (RANDN(7, 6), 7), (RANDN(7, 6), 1)],
    lambda x: torch.cat([x[2:], x * 2], 0): [(RANDN(2, 2),), (RANDN(5, 4),), (RANDN(3, 3),)],
    strided: [
        (RANDN(2, 3, 8, 8).to(memory_format=torch.channels_last), RANDN(6, 3, 3, 3)),
        (RANDN(2, 3, 9, 12), RANDN(6, 3, 3, 3)),
        (RANDN(3, 3, 7, 7), RANDN(4, 3, 3, 3)),
    ],
    diagonal: [(RANDN(4, 6),), (RANDN(6, 4),), (RANDN(5, 5),)],
    summed: [(*RANDN(63, 3, 5),), (*RANDN(63, 4, 2),)],
    lambda x: (x[1:], x * 2): [(RANDN(1, 7)[:, 1:6],), (RANDN(4, 9)[:, 1:6],)],
}


@pytest.mark.slow
@pytest.mark.parametrize("function", CORNERS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_may_become_0_or_1_or_equal(
    function: Callable[..., Any], dynamic: bool | None
) -> None:
    run = compiled(function, dynamic)
    for args in CORNERS[function]:
        expected = function(*args)
        torch.testing.assert_close(run(*args), expected)
        assert_same_sharing(
            [*args, *pytree.tree_leaves(run(*args))], [*args, *pytree.tree_leaves(expected)]
        )


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "virtual"])
def test_trainings_with_symbolic_sizes_are_eagers(device: str | None) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    run = compiled(model, device=device)
    for n in (3, 5, 3, 7):
        x = torch.randn(n, 4)
        run(x).square().mean().backward()
        eager(x).square().mean().backward()
    for ours, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)
    assert [bool(program.sizes) for program in nimble_fx.programs()] == [False, False, True, True]
    assert all(map(kernels_of, nimble_fx.programs()))


def test_sizes_that_depend_on_data_run_by_pytorchs_kernels_with_the_reason() -> None:
    def nonzero(x: Tensor) -> Tensor:
        return x.nonzero() * 2

    x = torch.tensor([0.0, 1.0, 2.0])
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.warns(NimbleWarning, match="PyTorch's kernels.*it has sizes that are known only"),
    ):
        assert torch.equal(compiled(nonzero, on_fallback="warn")(x), nonzero(x))
