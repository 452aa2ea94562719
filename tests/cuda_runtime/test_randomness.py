"""A seed draws the same random numbers again, and each replay of a graph different ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytestmark = pytest.mark.gpu

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": torch.rand_like,
    "normal": torch.randn_like,
    "exponential": lambda p: torch.empty_like(p).exponential_(),
    "of a permutation": lambda p: torch.randperm(p.numel(), device=p.device),
    "dropout": functional.dropout,
    "bernoulli": lambda p: torch.empty_like(p).bernoulli_(0.5),
    "bernoulli by a tensor": torch.bernoulli,
    "poisson": lambda p: torch.poisson(p * 100),
    "gamma": torch._standard_gamma,
    "binomial": lambda p: torch.binomial(torch.full_like(p, 100), p),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_seed_draws_the_same_again_and_then_others(draw: Callable[[Tensor], Tensor]) -> None:
    p = torch.full((64,), 0.5, device="cuda")
    drawn = []
    for _ in range(2):
        torch.cuda.manual_seed(7)
        drawn.append([draw(p).tolist() for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_replays_draw_what_eager_draws(draw: Callable[[Tensor], Tensor]) -> None:
    p = torch.full((64,), 0.5, device="cuda")
    torch.cuda.manual_seed(7)
    expected = [draw(p).tolist() for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = draw(p)
    torch.cuda.manual_seed(7)
    for numbers in expected:
        graph.replay()
        assert drawn.tolist() == numbers
