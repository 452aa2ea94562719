"""Which weights are packed, and that oneDNN computes the same with packed ones."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.runtime.folding.packed_weights import packings
from nimble_fx.torch_internals.kernels.onednn import CONVOLUTION, LINEAR
from nimble_fx.tracing.aten_to_tasks import trace

MATRIX, IMAGE, FILTER = torch.randn(8, 8), torch.randn(2, 4, 6, 6), torch.randn(6, 4, 3, 3)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return LINEAR(x, weight, None, "none", [], None)


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    window = ([1, 0], [1, 2], [1, 1], 1)
    return CONVOLUTION(x, weight, None, *window, "none", [], None)


def traced(function: Callable[..., Tensor], *inputs: Tensor) -> TaskGraph:
    return trace(make_fx(function, tracing_mode="fake")(*inputs), "packed").graph


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (product, (torch.randn(5, 8), MATRIX)),
        (product, (torch.randn(2, 5, 8), MATRIX)),
        (convolution, (IMAGE, FILTER)),
        (lambda x, w: product(product(x, w), w), (torch.randn(5, 8), MATRIX)),
    ],
)
def test_a_weight_is_packed_and_means_the_same(
    function: Callable[..., Tensor], inputs: tuple[Tensor, Tensor]
) -> None:
    x, weight = inputs
    not_packed, pack = packings(traced(function, *inputs))
    assert not_packed is None
    assert pack is not None
    assert pack(weight).is_mkldnn
    for each in (x, torch.randn(11, *x.shape[1:])):  # packed for the first of these
        torch.testing.assert_close(function(each, pack(weight)), function(each, weight))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: product(x, w) + w,
        lambda x, w: product(w, x),
        lambda x, w: product(w, w) + x,
        lambda x, w: x @ w,
        lambda x, w: x,
    ],
)
def test_what_others_read_is_not_packed(function: Callable[..., Tensor]) -> None:
    _, pack = packings(traced(function, MATRIX, MATRIX + 1))
    assert pack is None


def test_of_several_operators_the_first_decides_for_how_many_rows() -> None:
    def both(x: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return product(x, weight), product(other, weight)

    calls = [torch.randn(2, 8), torch.randn(300, 8)]
    for one, other in pairwise([*calls, calls[0]]):
        pack = packings(traced(both, one, other, MATRIX))[2]  # type: ignore[arg-type]
        assert pack is not None
        assert pack.keywords == {"n_rows": len(one)}  # type: ignore[attr-defined]
