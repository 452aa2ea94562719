"""The fastest by samples wins, unless something else disturbed them."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.runtime.samples import DISTURBED, are_disturbed, select_winner
from nimble_fx.selection.candidate import MIN_GAIN


@given(
    st.lists(st.tuples(st.floats(1, 9), st.floats(0.5, 1.5)), min_size=3, max_size=9).filter(
        lambda rounds: len(rounds) % 2
    )
)
def test_a_device_that_slows_down_for_a_while_does_not_decide(
    rounds: list[tuple[float, float]],
) -> None:
    slowness = [slow for slow, _ in rounds]
    assert select_winner({0: [0.9 * slow for slow in slowness], 1: slowness}, baseline=1) == 0
    level = [slow * ratio for slow, ratio in rounds]
    winner = select_winner({0: level, 1: slowness}, baseline=1)
    ratio = median(ratio for _, ratio in rounds)
    assert winner == 1 or ratio <= 1 - MIN_GAIN + 1e-9


def test_times_that_are_far_apart_are_disturbed() -> None:
    assert not are_disturbed([[1.0, 1.0 * DISTURBED], [8.0, 9.0]])
    assert are_disturbed([[1.0, 1.1], [8.0, 8.1 * DISTURBED]])
