"""Rounding decides what differs between runs, and where runs agree there is nothing to decide."""

import math
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.runtime.rounding_range import RoundingRange

NUMBERS = st.sampled_from([0.0, 1.0, 1.001, -2.0, 1e-3, float("nan"), float("inf")])
INTEGERS = st.integers(-3, 3)


def runs(elements: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    """The outputs of several runs, of four elements each."""
    return st.lists(st.lists(elements, min_size=4, max_size=4), min_size=1, max_size=4)


def known(outputs: Sequence[Tensor]) -> RoundingRange:
    first, *others = outputs
    made = RoundingRange(first)
    for other in others:
        made.add(other)
    return made


def is_another(one: float, other: float, usual: float) -> bool:
    """Whether two numbers differ by more than a part of their size."""
    if math.isinf(one) or math.isinf(other):
        return one != other
    limit = torch.finfo(torch.float32).eps ** 0.5
    return abs(one - other) > limit * max(abs(one), abs(other), usual)


@given(runs(st.sampled_from([0.0, 1.0, 1.001, -2.0, 1e-3, math.inf, -math.inf])))
def test_numbers_that_differ_more_than_rounding_makes_them_are_undecided(
    outputs: list[list[float]],
) -> None:
    columns = list(zip(*outputs, strict=True))
    size = torch.tensor([max(map(abs, column)) for column in columns], dtype=torch.float64)
    usual = size[size.isfinite()].square().mean().sqrt().nan_to_num().item()
    expected = [any(is_another(a, b, usual) for a in column for b in column) for column in columns]
    range_ = known([torch.tensor(output, dtype=torch.float64) for output in outputs])
    assert range_.undecided(torch.float32).tolist() == expected


@given(runs(NUMBERS))
def test_what_is_not_a_number_in_some_runs_only_is_undecided(outputs: list[list[float]]) -> None:
    undecided = known([torch.tensor(output) for output in outputs]).undecided(torch.float32)
    for i, column in enumerate(zip(*outputs, strict=True)):
        n_nan = sum(number != number for number in column)
        assert undecided[i] or n_nan in (0, len(column))
        assert not undecided[i] or len({*map(str, column)}) > 1


@given(runs(INTEGERS), st.lists(INTEGERS, min_size=4, max_size=4))
def test_integers_are_those_of_all_runs_or_between_those_that_vary(
    outputs: list[list[float]], result: list[int]
) -> None:
    columns = list(zip(*outputs, strict=True))
    vary = [column for column in columns if len({*column}) > 1]
    expected = all(
        min(map(min, vary)) <= number <= max(map(max, vary))
        if column in vary
        else number == column[0]
        for column, number in zip(columns, result, strict=True)
    )
    range_ = known([torch.tensor(output) for output in outputs])
    assert range_.has_numbers(torch.tensor(result)) == expected


def test_shapes_may_differ_where_those_of_runs_do() -> None:
    range_ = known([torch.zeros(2, 3), torch.zeros(5, 3)])
    found = [range_.has_shape(torch.Size(shape)) for shape in ((4, 3), (9, 3), (2, 4), (2, 3, 1))]
    assert found == [True, True, False, False]
