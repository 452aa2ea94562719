"""A contestant's distance from float64 is compared with eager's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measuring.accuracy import ROUNDING, TIMES_EAGER, InaccurateError, Reference


def reference(error: float, size: float = 1.0) -> Reference:
    """Eager is off by `error` of the size, everywhere."""
    exact = size * torch.ones(8, dtype=torch.float64)
    return Reference([(exact * (1 + error)).float()], [exact])


def result(error: float, size: float = 1.0) -> list[torch.Tensor]:
    return [(size * (1 + error) * torch.ones(8, dtype=torch.float64)).float()]


@given(
    st.floats(1e-3, 0.1),
    st.floats(0, 10).filter(lambda f: abs(f - TIMES_EAGER) > 0.1),
    st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_it_may_be_a_few_times_as_far_from_float64_as_eager(
    error: float, factor: float, size: float
) -> None:
    of = reference(error, size)
    if factor < TIMES_EAGER:
        assert of.check(result(factor * error, size)) == pytest.approx(factor * error, abs=1e-6)
    else:
        with pytest.raises(InaccurateError, match=r"result 0 is .* from float64's"):
            of.check(result(factor * error, size))


def test_rounding_is_allowed_where_eager_is_exact() -> None:
    assert reference(0).check(result(ROUNDING / 2)) > 0
    with pytest.raises(InaccurateError):
        reference(0).check(result(3 * ROUNDING))


@pytest.mark.parametrize(
    "wrong",
    [
        [torch.ones(7)],
        [torch.ones(8, dtype=torch.float64)],
        [],
        [torch.full((8,), torch.nan)],
        [torch.full((8,), torch.inf)],
        [torch.zeros(8)],
    ],
)
def test_another_shape_type_or_number_of_results_or_no_number_is_wrong(
    wrong: list[torch.Tensor],
) -> None:
    with pytest.raises(InaccurateError):
        reference(1e-3).check(wrong)


def test_a_gradient_that_is_only_rounding_is_held_against_the_largest() -> None:
    exact = [torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)]
    of = Reference([torch.ones(4), torch.full((4,), 1e-11)], exact)
    assert of.check([torch.ones(4), torch.full((4,), -4e-9)]) < ROUNDING
    with pytest.raises(InaccurateError):
        of.check([torch.ones(4), torch.full((4,), 1e-3)])
