"""Transforms of functions, around compiled functions and within them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vjp, vmap

import nimble_fx
from tests.support.beside_eager import Compile, assert_as_eager, on_both_devices


def loss(w: Tensor, x: Tensor) -> Tensor:
    return (torch.tanh(x @ w) * torch.sigmoid(x)).square().mean()


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 4), torch.randn(3, 4)


def vmap_within(compile_: Compile) -> Any:
    return compile_(lambda w, x: vmap(loss, (None, 0))(w, x))(*arguments())


def grad_within(compile_: Compile) -> Any:
    return compile_(lambda w, x: grad(loss)(w, x))(*arguments())


def gradients_of_each_sample_within(compile_: Compile) -> Any:
    return compile_(lambda w, x: vmap(grad(loss), (None, 0))(w, x))(*arguments())


def jvp_within(compile_: Compile) -> Any:
    w, x = arguments()
    return compile_(lambda w, x: jvp(lambda w: loss(w, x), (w,), (w + 1,)))(w, x)


def vjp_within(compile_: Compile) -> Any:
    def product(w: Tensor, x: Tensor) -> Any:
        y, pull = vjp(torch.mm, x, w)[:2]
        return y, *pull(torch.ones_like(y))

    return compile_(product)(*arguments())


def jacobian_within(compile_: Compile) -> Any:
    return compile_(lambda x: jacrev(lambda x: torch.sin(x) * x.sum())(x))(torch.randn(4))


def transforms_around_after_plain_calls(compile_: Compile) -> Any:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    run = compile_(model)
    with torch.no_grad():
        return [run(x), vmap(run)(x), run(x), jvp(run, (x,), (x + 1,))]


def tangents_of_inputs(compile_: Compile) -> Any:
    """A tangent may come with the first call, or with one that replays a captured graph."""
    model, results = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), []
    run = compile_(model)
    with torch.no_grad():
        for x in torch.randn(4, 3, 4):
            results.append(run(x))
            with forward_ad.dual_level():
                results.append(forward_ad.unpack_dual(run(forward_ad.make_dual(x, x + 1))).tangent)
    return results


def functional_call_within(compile_: Compile) -> Any:
    model, (w, x) = nn.Linear(4, 4), arguments()
    run = compile_(lambda w, x: functional_call(model, {"weight": w}, (x,)))
    return run(w, x), run(w * 2, x)


def functional_call_around(compile_: Compile) -> Any:
    model, (w, x) = nn.Linear(4, 4), arguments()
    run = compile_(model)
    return functional_call(model, {"weight": w}, (x,)), run(x)


def an_ensemble(compile_: Compile) -> Any:
    models, x = [nn.Linear(4, 4) for _ in range(3)], torch.randn(3, 4)
    parameters, buffers = stack_module_state(models)

    def one(parameters: Any, buffers: Any, x: Tensor) -> Any:
        return functional_call(models[0], (parameters, buffers), (x,))

    return compile_(vmap(one, (0, 0, None)))(parameters, buffers, x)


SCENARIOS: tuple[Callable[[Compile], Any], ...] = (
    *(vmap_within, grad_within, gradients_of_each_sample_within, jvp_within, vjp_within),
    *(jacobian_within, functional_call_within, functional_call_around),
    *(transforms_around_after_plain_calls, tangents_of_inputs, an_ensemble),
)


@on_both_devices
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_transforms_are_eagers(scenario: Any, options: dict[str, Any]) -> None:
    assert_as_eager(scenario, options)


def tangent(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    with torch.no_grad(), forward_ad.dual_level():
        found: Tensor | None
        found = forward_ad.unpack_dual(function(forward_ad.make_dual(x, x + 1))).tangent
        return found


@on_both_devices
@pytest.mark.parametrize("freeze", [True, False])
def test_operators_with_numbers_lose_no_tangents(freeze: bool, options: dict[str, Any]) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sin(x + 1) * 2 - x

    run = torch.compile(function, backend="nimble", options=options | {"freeze": freeze})
    for x in torch.randn(4, 3, 4):
        torch.testing.assert_close(tangent(run, x), tangent(function, x))


@on_both_devices
@pytest.mark.parametrize("guards", [True, False])
def test_kernels_of_inductors_lose_no_tangents(guards: bool, options: dict[str, Any]) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sin(x) * x.sum()

    x = torch.randn(3, 4)
    run = nimble_fx.compile(function, x, guards=guards, kernels="inductor", **options)
    for each in torch.randn(2, 3, 4):
        torch.testing.assert_close(run(each), function(each))
        torch.testing.assert_close(tangent(run, each), tangent(function, each))
    assert nimble_fx.fallbacks() == ()
    (program,) = run.programs
    assert "nimble_kernels" in program.source
    bound = program.bind({})
    with pytest.raises(nimble_fx.InputError, match=r"a tangent.*compile with kernels='aten'"):
        tangent(lambda x: bound(x)[0], x)
