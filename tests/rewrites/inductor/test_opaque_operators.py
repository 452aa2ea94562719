"""An opaque operator does what its original does, and Inductor does not replace it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.rewrites.inductor.inductor_kernels import with_inductor_kernels
from nimble_fx.rewrites.inductor.opaque_operators import (
    CONCATENATIONS,
    CONVOLUTIONS,
    original_of,
    with_opaque_operators,
)
from nimble_fx.torch_internals.kernels.onednn import CONVOLUTION, CONVOLUTION_ADD, LINEAR
from nimble_fx.torch_internals.operators import KERNELS
from tests.support.accuracy import assert_as_accurate

X, MATRIX, BIAS = torch.randn(3, 8), torch.randn(8, 8), torch.randn(8)


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return LINEAR(torch.relu(x), weight, bias, "tanh", [], None).exp()


def product_without_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return LINEAR(torch.relu(x), weight, None, "none", [], None) + bias.exp()


def concatenated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([x.exp() + bias, (weight * 2).sin()], 0)


def stacked(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.stack([x.exp() + bias, (weight[:3] * 2).sin()], 1)


WINDOW = ([1, 1], [1, 1], [1, 1], 1)  # padding, stride, dilation, groups


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    image, kernel = torch.relu(x)[None, None], weight[None, None, :3, :3]
    return CONVOLUTION(image, kernel, bias[:1], *WINDOW, "none", [], None).relu()


def convolution_that_adds(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    image, kernel = torch.relu(x)[None, None], weight[None, None, :3, :3]
    options: tuple[Any, ...] = ("add", 1.0, None, [], None)
    return CONVOLUTION_ADD(image, image, kernel, bias[:1], *WINDOW, *options).relu()


CASES = [
    (product, LINEAR, "packed_linear"),
    (product_without_bias, LINEAR, "packed_linear"),
    (convolution, CONVOLUTION, "convolution"),
    (convolution_that_adds, CONVOLUTION_ADD, "convolution_add"),
    (concatenated, torch.ops.aten.cat.default, "concatenation"),
    (stacked, torch.ops.aten.stack.default, "stack"),
]


def targets(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes]


@pytest.mark.parametrize(("function", "operator", "name"), CASES)
def test_an_opaque_operator_is_called_in_the_originals_place_and_does_the_same(
    function: Callable[..., Tensor], operator: object, name: str
) -> None:
    gm = make_fx(function)(X, MATRIX, BIAS)
    other = with_opaque_operators(gm, [operator])
    assert operator in targets(gm)
    assert operator not in targets(other)
    assert original_of(name) is operator
    assert torch.equal(other(X, MATRIX, BIAS), function(X, MATRIX, BIAS))


@pytest.mark.parametrize(("function", "operator", "name"), CASES)
def test_other_operators_have_none(
    function: Callable[..., Tensor], operator: object, name: str
) -> None:
    gm = make_fx(function)(X, MATRIX, BIAS)
    others = {LINEAR, *CONVOLUTIONS, *CONCATENATIONS} - {operator}
    assert targets(with_opaque_operators(gm, others)) == targets(gm)
    assert original_of(f"another {name}") is None


def test_pytorch_finds_no_fault_with_them() -> None:
    ours = getattr(torch.ops, KERNELS)
    linear = torch.library.opcheck(ours.linear.default, (X, MATRIX, BIAS))
    packed = torch.library.opcheck(ours.packed_linear.default, (X, MATRIX, BIAS, "none", [], None))
    concatenation = torch.library.opcheck(ours.concatenation.default, ([X, MATRIX], 0))
    stack = torch.library.opcheck(ours.stack.default, ([MATRIX, MATRIX], 1))
    image, kernel = X[None, None], MATRIX[None, None, :3, :3].clone()
    convolution = torch.library.opcheck(
        ours.convolution.default, (image, kernel, None, *WINDOW, "none", [], None)
    )
    outcomes = {
        *(*linear.values(), *packed.values(), *concatenation.values(), *stack.values()),
        *convolution.values(),
    }
    assert outcomes == {"SUCCESS"}


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        *((function, LINEAR) for function in (product, product_without_bias)),
        *((convolution, CONVOLUTION), (convolution_that_adds, CONVOLUTION_ADD)),
    ],
)
def test_each_stays_one_beside_inductors_kernels(
    function: Callable[..., Tensor], operator: object
) -> None:
    def as_of_aot_autograd(*inputs: Tensor) -> tuple[Tensor]:
        return (function(*inputs),)

    gm = make_fx(as_of_aot_autograd, tracing_mode="fake")(X, MATRIX, BIAS)
    fused = with_inductor_kernels(gm)
    assert targets(fused).count(operator) == 1
    assert torch.ops.aten.relu.default not in targets(fused)
    torch.testing.assert_close(fused(X, MATRIX, BIAS), as_of_aot_autograd(X, MATRIX, BIAS))


def test_small_pointwise_convolutions_stay_products_beside_inductors_kernels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ELU()).eval()
    x = torch.randn(2, 3, 6, 6)
    compiled = nimble_fx.compile(model, x, kernels="inductor", on_fallback="error")
    (program,) = compiled.programs
    called = [task.target for task in program.graph.tasks]
    assert called.count(torch.ops.aten.linear.default) == 1
    assert torch.ops.aten.elu.default not in called
    assert_as_accurate(model, (x,), [compiled(x)])
