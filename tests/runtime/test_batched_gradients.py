"""Backwards of batched gradients equal eager's, and other calls stay as they were."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace

import nimble_fx
from nimble_fx.errors import FallbackError
from nimble_fx.fallback import AS_TRACED, Reporter
from nimble_fx.runtime.batched_gradients import with_batched_gradients
from tests.support.beside_eager import CPU, VIRTUAL
from tests.support.eager import assert_same
from tests.support.replaying import ReplayingDevice

Function = Callable[[Tensor], Any]


def two_outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sigmoid(x) * torch.tanh(x.exp()), x.square().sum()


def each_then_all(run: Function) -> Any:
    """The gradients of each element of the first of two outputs, then those of their sum."""
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    y, _ = run(x)
    each = torch.eye(6).view(6, 2, 3)
    batched = torch.autograd.grad(y, x, each, is_grads_batched=True, retain_graph=True)
    return batched, torch.autograd.grad(y, x, torch.ones(2, 3))


def of_both_outputs(run: Function) -> Any:
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    grads = (torch.eye(6).view(6, 2, 3), torch.arange(6.0))
    return torch.autograd.grad(run(x), x, grads, is_grads_batched=True)


def vectorized_jacobian(run: Function) -> Any:
    jacobian: Any = torch.autograd.functional.jacobian
    return jacobian(run, torch.linspace(-1, 1, 6).view(2, 3), vectorize=True)


@pytest.mark.parametrize("scenario", [each_then_all, of_both_outputs, vectorized_jacobian])
@pytest.mark.parametrize("options", [CPU, VIRTUAL, CPU | {"kernels": "inductor"}])
def test_they_are_eagers(scenario: Any, options: dict[str, Any]) -> None:
    options = {**options, "on_fallback": "silent"}
    compiled = torch.compile(two_outputs, backend="nimble", options=options)
    assert_same(scenario(compiled), scenario(two_outputs))
    (fallback,) = nimble_fx.fallbacks()
    assert (fallback.program, fallback.runs) == ("two_outputs (backward)", AS_TRACED)


def test_what_a_captured_forward_saved_is_read_before_the_next_replay(
    device: ReplayingDevice,
) -> None:
    options: dict[str, Any] = {"policy": "nimble", "on_fallback": "silent"}
    compiled = torch.compile(two_outputs, backend="nimble", options=options)
    for _ in range(3):
        assert_same(each_then_all(compiled), each_then_all(two_outputs))
    assert device.n_replays > 0


def test_they_are_a_fallback_that_may_be_an_error() -> None:
    options: dict[str, Any] = {"on_fallback": "error"}
    compiled = torch.compile(two_outputs, backend="nimble", options=options)
    with pytest.raises(FallbackError, match="is_grads_batched"):
        each_then_all(compiled)


def test_the_graph_is_not_kept() -> None:
    def run(args: Sequence[Any]) -> Sequence[Any]:
        return args

    gm = symbolic_trace(lambda x: x.sin())
    call, graph = with_batched_gradients(run, gm, "sin", run, Reporter()), weakref.ref(gm)
    del gm
    gc.collect()
    assert graph() is None
    assert call([1]) == [1]
