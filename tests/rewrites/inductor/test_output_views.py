"""Results of Inductor's kernels are views for autograd where PyTorch's are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.bits import assert_same_sharing
from tests.support.inductor_kernels import compiled

Function = Callable[[Tensor], Tensor]

FUNCTIONS: dict[str, Function] = {
    "linear": lambda x: functional.linear(x[None], x.exp()),
    "update": lambda x: (x @ x).t().diagonal_scatter(x[0]),
    "norm": lambda x: functional.group_norm((x @ x)[None], 2),
    "stack": lambda x: torch.stack([x.sin(), x.cos()]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_caller_may_write_to_results_before_the_backward(name: str, dynamic: bool) -> None:
    def gradient(function: Function) -> Tensor | None:
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        function(x).mul_(2).sum().backward()
        return x.grad

    function = FUNCTIONS[name]
    torch.testing.assert_close(gradient(compiled(function, dynamic=dynamic)), gradient(function))


def test_what_was_detached_needs_no_gradient() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x @ x
        return y.sum(), y.detach()[1:], y.detach().t(), y

    x = torch.randn(4, 4, requires_grad=True)
    found, expected = compiled(function)(x), function(x)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in expected]
    assert_same_sharing(found, expected)
