"""Weights that change too often are not folded; those that stay the same are."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.runtime.folding.folded_weights import BREAK_EVEN_CALLS, MAX_EARLY, FoldedWeights
from tests.support.doubling import Doubling

steps = st.lists(st.integers(0, 3 * BREAK_EVEN_CALLS), min_size=1, max_size=20)
"""How many calls there are between changes of the weights."""


@given(steps, st.booleans())
def test_all_but_a_few_computations_pay_off(calls: list[int], are_counted: bool) -> None:
    compute, weight = Doubling(), torch.zeros(2)
    folded = FoldedWeights(compute, [None])
    for n in calls:
        (weight if are_counted else weight.data).add_(1)
        for _ in range(n):
            results = folded.unless_changing([weight])
            assert results is None or torch.equal(results[0], 2 * weight)
    assert compute.n <= 1 + MAX_EARLY + sum(calls) // BREAK_EVEN_CALLS


@given(steps)
def test_what_stays_the_same_long_enough_is_computed(calls: list[int]) -> None:
    compute, weight = Doubling(), torch.zeros(2)
    folded = FoldedWeights(compute, [None])
    for n in calls:
        weight.add_(1)
        for _ in range(n):
            folded.unless_changing([weight])
    weight.add_(1)
    results = [folded.unless_changing([weight]) for _ in range(BREAK_EVEN_CALLS + 2)]
    assert results[-1] is not None
    assert all(now is not None for before, now in pairwise(results) if before is not None)


def test_a_few_changes_change_nothing() -> None:
    compute, weight = Doubling(), torch.zeros(2)
    folded = FoldedWeights(compute, [None])
    for _ in range(MAX_EARLY):
        weight.add_(1)
        assert folded.unless_changing([weight]) is not None
    assert compute.n == MAX_EARLY


def test_inference_tensors_are_not_kept_beside_others() -> None:
    compute = Doubling()
    folded, weight = FoldedWeights(compute, [None]), torch.ones(2)
    with torch.inference_mode():
        uncounted = torch.ones(2)
    for _ in range(3):
        results = folded.unless_changing([weight])
        assert results is not None
        assert results[0].tolist() == [2, 2]
        assert folded.unless_changing([uncounted]) is None
    assert compute.n == 1


def test_those_of_models_that_come_and_go_are_not_computed_for_ever() -> None:
    compute = Doubling()
    folded = FoldedWeights(compute, [None])
    for _ in range(50):
        weight = torch.ones(2)
        folded.unless_changing([weight])
        del weight
    assert compute.n <= MAX_EARLY + 2
