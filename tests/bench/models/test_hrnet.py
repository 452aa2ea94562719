"""HRNet computes resolutions in parallel, and each exchange joins all of them."""

import pytest
import torch
from torch import Tensor

from bench.models.hrnet import Exchange, ParallelModule

CHANNELS = (4, 8, 16, 32)


def _pyramid() -> list[Tensor]:
    sizes = (16, 8, 4, 2)
    pairs = zip(CHANNELS, sizes, strict=True)
    return [torch.randn(2, c, size, size, requires_grad=True) for c, size in pairs]


@pytest.mark.parametrize("target", range(4))
def test_each_resolution_is_made_of_all(target: int) -> None:
    pyramid = _pyramid()
    Exchange(CHANNELS)(pyramid)[target].sum().backward()
    assert all(x.grad is not None and x.grad.any() for x in pyramid)


@pytest.mark.parametrize("resolution", range(4))
def test_the_branches_of_a_module_are_independent(resolution: int) -> None:
    pyramid = _pyramid()
    module = ParallelModule(CHANNELS)
    module.branches[resolution](pyramid[resolution]).sum().backward()
    assert [x.grad is not None for x in pyramid] == [i == resolution for i in range(4)]
    touched = [any(p.grad is not None for p in branch.parameters()) for branch in module.branches]
    assert touched == [i == resolution for i in range(4)]
