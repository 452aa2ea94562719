"""Results that pay off are made; of others only as many as may be dropped early, and some more."""

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.runtime import break_even
from nimble_fx.runtime.break_even import BreakEven

keys = st.lists(st.integers(0, 5), max_size=200)
"""The key of each call; results are dropped as soon as another key is called."""


@given(keys, st.integers(1, 8), st.integers(1, 4))
def test_most_results_are_used_or_were_waited_for(
    calls: list[int], n_calls: int, max_early: int
) -> None:
    rule, there, n_uses, n_made = BreakEven(n_calls, max_early), None, 0, 0
    for key in calls:
        if key != there and rule.pays_off(key):
            if there is not None:
                rule.dropped(n_uses)
            rule.made(key)
            there, n_uses, n_made = key, 0, n_made + 1
        n_uses += key == there
    assert n_made <= 1 + max_early + len(calls) // n_calls


def test_what_was_used_often_enough_is_not_early() -> None:
    rule = BreakEven(3, max_early=2)
    for n_uses in (3, 4, 2, 3):
        rule.dropped(n_uses)
    assert rule.pays_off("new")
    rule.dropped(2)
    assert not rule.pays_off("new")


def test_what_is_called_often_pays_off_and_once_made_is_counted_anew() -> None:
    rule = BreakEven(3, max_early=0)
    for _ in range(2):
        assert [rule.pays_off("often") for _ in range(4)] == [False, False, False, True]
        rule.made("often")


class Forgotten:
    """A key that, whenever it is looked up, was just removed by another thread."""

    def __init__(self, rule: BreakEven) -> None:
        self.rule = rule

    def __hash__(self) -> int:
        self.rule._n_calls.clear()
        return 1


def test_other_threads_may_make_the_same_result_meanwhile() -> None:
    rule = BreakEven(1, max_early=0)
    assert [rule.pays_off(Forgotten(rule)) for _ in range(3)] == [False] * 3


def test_the_calls_of_those_called_last_are_counted() -> None:
    rule = BreakEven(3, max_early=0)
    for key in range(3 * (break_even._MAX_COUNTED - 1)):
        if key % (break_even._MAX_COUNTED - 1) == 0:
            assert not rule.pays_off("often")
        assert not rule.pays_off(key)
    assert len(rule._n_calls) == break_even._MAX_COUNTED
    assert rule.pays_off("often")
