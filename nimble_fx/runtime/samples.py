"""Samples of the times of alternatives, and which of them is the fastest by these."""

from collections.abc import Iterable, Sequence
from statistics import median

from nimble_fx.selection.candidate import MIN_GAIN

Samples = dict[int, list[float]]
"""The times of each alternative, by its position: one for each round, all in the same unit."""

DISTURBED = 2.0
"""If times of one alternative differ by this factor, the machine does other work too."""


def select_winner(samples: Samples, baseline: int) -> int:
    """The position of the alternative with the least median time.

    It is the baseline unless another is faster by `MIN_GAIN` in most rounds.
    """
    best = min(samples, key=lambda i: median(samples[i]))
    if baseline not in samples or best == baseline:
        return best
    pairs = zip(samples[best], samples[baseline], strict=True)
    is_faster = median(ours - (1 - MIN_GAIN) * its for ours, its in pairs) <= 0
    return best if is_faster else baseline


def are_disturbed(times: Iterable[Sequence[float]]) -> bool:
    """Whether times of one alternative differ so much that something else disturbs them."""
    return any(max(each) > DISTURBED * min(each) for each in times if each)
