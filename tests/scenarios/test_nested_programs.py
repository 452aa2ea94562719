"""Operators of a program that themselves call compiled programs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.beside_eager import CPU, VIRTUAL

_function: list[Callable[[Tensor], Tensor]] = []


@torch.library.custom_op("nimble_nested::call", mutates_args=())
def call(x: Tensor) -> Tensor:
    """The last function of the list, which may be compiled."""
    return _function[-1](x).clone()


@call.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def inner(x: Tensor) -> Tensor:
    sums = torch.softmax(x, -1).cumsum(-1)
    return torch.relu(x) * 0.5 + torch.softmax(x.clone() + sums, -1) + x.cos()


def outer(x: Tensor) -> Tensor:
    called: Tensor = call(x * 0.5 + 0.1)
    sums = torch.softmax(x, -1).cumsum(-1)
    return torch.relu(x) * 0.5 + torch.softmax(called + sums, -1) + x.cos()


def assert_nested_calls_are_eagers(device: str, options: dict[str, Any], inner_first: bool) -> None:
    """Both functions are compiled, one of which calls the other; calls compute what eager does."""
    torch.compiler.reset()
    inputs = [torch.randn(3, 5, device=device) for _ in range(4)]
    _function[:] = [inner]
    expected = [outer(x) for x in inputs]
    with torch.no_grad():
        _function[:] = [torch.compile(inner, backend="nimble", options=options)]
        if inner_first:
            _function[-1](inputs[0])
        compiled = torch.compile(outer, backend="nimble", options=options)
        for x, wanted in zip(inputs, expected, strict=True):
            torch.testing.assert_close(compiled(x), wanted)


WAYS: list[dict[str, Any]] = [
    CPU,
    *(VIRTUAL | {"policy": p, "freeze": f} for p in ("nimble", "serial") for f in (False, True)),
]


@pytest.mark.parametrize("inner_first", [False, True])
@pytest.mark.parametrize("options", WAYS)
def test_nested_calls_are_eagers(options: dict[str, Any], inner_first: bool) -> None:
    assert_nested_calls_are_eagers("cpu", options, inner_first)


@pytest.mark.gpu
@pytest.mark.parametrize("inner_first", [False, True])
@pytest.mark.parametrize("freeze", [False, True])
def test_nested_calls_are_eagers_on_a_gpu(freeze: bool, inner_first: bool) -> None:
    assert_nested_calls_are_eagers("cuda", {"policy": "nimble", "freeze": freeze}, inner_first)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("options", WAYS)
def test_a_program_may_call_itself(options: dict[str, Any], depth: int) -> None:
    torch.compiler.reset()
    step = torch.tensor([1.0, 0.0, 0.0])

    def function(x: Tensor) -> Tensor:
        called: Tensor = call(x * torch.tensor([1.0, 0.5, 0.5]) + step)
        return torch.relu(x) * 0.5 + called + x.cos()

    def recursive(x: Tensor) -> Tensor:
        return x.clone() if x[0] >= depth else _function[0](x)

    inputs = [torch.cat([torch.zeros(1), torch.randn(2)]) for _ in range(4)]
    _function[:] = [function, recursive]
    expected = [function(x) for x in inputs]
    with torch.no_grad():
        _function[0] = torch.compile(function, backend="nimble", options=options)
        for x, wanted in zip(inputs, expected, strict=True):
            torch.testing.assert_close(_function[0](x), wanted)
