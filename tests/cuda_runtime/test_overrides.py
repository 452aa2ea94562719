"""Operators compute what the CPU's compute, in the memory of the CUDA kernels' results."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 0.5**x,
        lambda x: 2**x,
        lambda x: torch.float_power(2, x),
        lambda x: torch.pow(2, x, out=torch.empty_like(x)),
        lambda x: torch.isin(2, x),
        lambda x: torch.isin(x, 2),
        lambda x: torch.xlogy(2, x),
        lambda x: 2 % x,
        lambda x: x**0.5,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_number_may_be_an_operand(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = torch.tensor([1, 2, 3], dtype=dtype)
    expected, ours = function(x), function(x.cuda())
    assert ours.dtype == expected.dtype
    assert torch.equal(ours.cpu(), expected)
