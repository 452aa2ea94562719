"""NASNet-A as its paper counts it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from bench.models.nasnet import nasnet_a_large, nasnet_a_mobile


@pytest.mark.parametrize(
    ("build", "size", "n_parameters"),
    [(nasnet_a_mobile, 224, 5_289_978), (nasnet_a_large, 331, 88_753_150)],
)
def test_parameters_and_output_are_the_papers(
    build: Callable[[], nn.Module], size: int, n_parameters: int
) -> None:
    with torch.device("meta"):
        model, x = build().eval(), torch.empty(2, 3, size, size)
    assert sum(p.numel() for p in model.parameters()) == n_parameters
    assert model(x).shape == (2, 1000)


def test_it_trains_on_small_images() -> None:
    model = nasnet_a_mobile().train()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
