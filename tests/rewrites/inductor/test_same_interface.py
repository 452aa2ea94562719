"""A graph has another interface if more than values differ for its callers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.same_interface import check_same_interface

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
