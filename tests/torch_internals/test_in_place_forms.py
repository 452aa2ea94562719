"""Forms in place compute the same as the operators that they replace."""

import pytest
import torch
from torch._ops import OpOverload

from nimble_fx.torch_internals.in_place_forms import elementwise_in_place_form
from tests.support.bits import assert_same_bits
from tests.support.elementwise_operators import called, overwriting_operators


@pytest.mark.parametrize("operator", overwriting_operators(), ids=str)
def test_the_form_in_place_makes_the_same_bits(operator: OpOverload) -> None:
    compared = 0
    form = elementwise_in_place_form(operator)
    assert form is not None
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool):
        first = torch.rand(37, 5).mul(4).to(dtype)
        try:
            expected = called(operator, first)
        except (RuntimeError, NotImplementedError):
            continue  # it is not for elements of this type
        if expected.dtype == dtype:
            assert_same_bits(called(form, first), expected)
            compared += 1
    assert compared
