"""Tensors fit if their types are the same, and the same ones of them are one object."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nimble_fx.torch_internals.dynamo.tensor_guards import TensorGuards

OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "shape": lambda x: x[:, :2].contiguous(),
    "strides": lambda x: x.t().contiguous().t(),
    "dtype": lambda x: x.double(),
    "device": lambda x: x.to("meta"),
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "class": lambda x: nn.Parameter(x, requires_grad=False),
    "negative bit": lambda x: torch._neg_view(x),
    "conjugate bit": lambda x: x.to(torch.complex64).conj(),
}

patterns = st.lists(st.integers(0, 3), min_size=1, max_size=6)
"""Lists in which equal numbers stand for one tensor."""


@pytest.mark.parametrize("other", OTHERS)
def test_another_type_does_not_fit(other: str) -> None:
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    guards = TensorGuards([x, y])
    assert guards.check(x.clone(), y)
    assert not guards.check(OTHERS[other](x), y)
    assert not guards.check(x, OTHERS[other](y))


@given(patterns, patterns)
def test_the_same_ones_must_be_one_object(before: list[int], now: list[int]) -> None:
    now = (now * len(before))[: len(before)]
    some, others = (torch.ones(2) for _ in range(4)), (torch.zeros(2) for _ in range(4))
    first, second = list(some), list(others)
    guards = TensorGuards([first[k] for k in before])
    pairs = [(i, j) for i in range(len(before)) for j in range(len(before))]
    is_same = all((before[i] == before[j]) == (now[i] == now[j]) for i, j in pairs)
    assert guards.check(*[second[k] for k in now]) == is_same
