"""Upsampling runs as the operator that eager calls, with its bits, in inference and training."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

import nimble_fx
from nimble_fx.torch_internals.kernels.upsampling import upsampling_as_one_operator

MODES = [
    *((1, "nearest"), (1, "nearest-exact"), (1, "linear")),
    *((2, "nearest"), (2, "nearest-exact"), (2, "bilinear"), (2, "bicubic")),
    *((3, "nearest"), (3, "nearest-exact"), (3, "trilinear")),
]


def image(n_dims: int, size: int = 4, channels_last: bool = False) -> Tensor:
    x = torch.randn(2, 3, *range(size, size + n_dims))
    is_converted = channels_last and n_dims == 2
    return x.contiguous(memory_format=torch.channels_last) if is_converted else x


def run(compiled: Any, function: Any, x: Tensor, training: bool) -> list[Any]:
    """The results, and in training the gradients, of a function that is compiled and of eager."""
    both = []
    for call in (compiled, function):
        leaf = x.clone().requires_grad_(training)
        y = call(leaf)
        if training:
            y.backward(torch.ones_like(y))
        both.append([y.detach(), leaf.grad])
    return both


def targets() -> set[str]:
    programs = nimble_fx.programs()
    return {str(task.target) for program in programs for task in program.graph.launching}


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(MODES),
    st.sampled_from([{"scale_factor": 2}, {"scale_factor": 1.7}, {"size": 5}]),
    st.booleans(),
    st.booleans(),
)
def test_it_is_one_operator_of_known_sizes(
    mode: tuple[int, str], how: dict[str, Any], training: bool, channels_last: bool
) -> None:
    torch.compiler.reset()
    n_dims, name = mode

    def function(x: Tensor) -> Tensor:
        return interpolate(x, mode=name, **how)

    compiled = torch.compile(function, backend="nimble", dynamic=False)
    (ours, gradient), (eager, expected) = run(
        compiled, function, image(n_dims, channels_last=channels_last), training
    )
    assert torch.equal(ours, eager)
    assert ours.stride() == eager.stride()
    assert not training or torch.equal(gradient, expected)
    found = targets()
    assert {"upsample" in target for target in found} == {True}
    assert len(found) == 1 + training


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("n_dims", "mode"), MODES)
def test_symbolic_sizes_are_taken_apart_in_training_alone(
    n_dims: int, mode: str, training: bool
) -> None:
    def function(x: Tensor) -> Tensor:
        return interpolate(x, mode=mode, scale_factor=2)

    compiled = torch.compile(function, backend="nimble", dynamic=True)
    for size in (4, 6):
        (ours, gradient), (eager, expected) = run(compiled, function, image(n_dims, size), training)
        torch.testing.assert_close(ours, eager)
        assert not training or torch.testing.assert_close(gradient, expected) is None
    assert any("index" in target for target in targets()) == training


def test_other_backends_see_what_pytorch_says() -> None:
    operators = (torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.default)
    before = [dict(op.py_kernels) for op in operators]
    with suppress(ZeroDivisionError), upsampling_as_one_operator():
        assert [dict(op.py_kernels) for op in operators] != before
        raise ZeroDivisionError
    assert [dict(op.py_kernels) for op in operators] == before


def test_inductors_kernels_take_it_apart() -> None:
    def function(x: Tensor) -> Tensor:
        return interpolate(x, mode="bilinear", scale_factor=2).relu()

    x = image(2)
    with torch.no_grad():
        compiled = torch.compile(function, backend="nimble", options={"kernels": "inductor"})
        torch.testing.assert_close(compiled(x), function(x))
    assert {target.startswith("nimble_kernels") for target in targets()} == {True}
