"""A graph has another interface if more than values differ for its callers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.same_interface import check_same_interface
from tests.support.eager import assert_same

Program = Callable[[Tensor], tuple[object, ...]]


def check(before: Program, after: Program) -> None:
    x = torch.randn(3, 3)
    graphs = [make_fx(each, tracing_mode="fake")(x).graph for each in (before, after)]
    check_same_interface(*graphs)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda x: (x.sin(),), lambda x: (x.cos(),)),
        (lambda x: (torch.rand_like(x), 3), lambda x: (torch.rand(3, 3), 3)),
        (lambda x: (x.sin()[:0], x[:0]), lambda x: (x[:0], x.cos()[:0])),
    ],
)
def test_values_may_be_computed_otherwise(before: Program, after: Program) -> None:
    check(before, after)


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        (lambda x: (x.sin(),), lambda x: (x.sin()[:2],), "returns"),
        (lambda x: (x.sin(),), lambda x: (x.t().sin(),), "returns"),
        (lambda x: (x.sin(),), lambda x: (x.sin().double(),), "returns"),
        (lambda x: (x.sin(), 3), lambda x: (x.sin(), 4), "returns"),
        (lambda x: (x.sin(), 1), lambda x: (x.sin(), True), "returns"),
        (lambda x: (x.sin(), 1), lambda x: (x.sin(), None), "returns"),
        (lambda x: (x.sin()[:1], x[:1]), lambda x: (x[:1], x.cos()[:1]), "in memory of an input"),
        (lambda x: (torch.rand_like(x),), lambda x: (x.sin(),), "random"),
        (lambda x: (torch.rand_like(x),), lambda x: (torch.randn_like(x),), "random"),
        (lambda x: (x.sin(),), lambda x: (x.sin() * torch.rand_like(x),), "random"),
        (
            lambda x: (torch.rand_like(x),),
            lambda x: (torch.rand_like(x.double()).float(),),
            "random",
        ),
    ],
)
def test_all_else_is_the_same(before: Program, after: Program, error: str) -> None:
    with pytest.raises(UnsupportedError, match=error):
        check(before, after)


def test_a_constant_that_is_returned_is_a_copy_in_each_call() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, x.new_tensor([1.0, 2.0]), torch.tensor([3, 4])

    options: dict[str, Any] = {"kernels": "inductor", "on_fallback": "error"}
    compiled, x = torch.compile(program, backend="nimble", options=options), torch.ones(2)
    for _ in range(2):
        results = compiled(x)
        assert_same(results, program(x))
        for result in results:
            result.add_(1)
