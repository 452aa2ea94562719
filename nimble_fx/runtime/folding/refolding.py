"""Decides whether weights that have changed are worth folding again."""

from collections import OrderedDict
from collections.abc import Sequence

BREAK_EVEN_CALLS = 16
"""Folding takes about as much time as this many calls gain by it."""

MAX_EARLY = 4
"""How many folded weights may be dropped before they break even."""

_MAX_COUNTED = 128
"""The most sets of weights whose calls are counted."""


class Refolding:
    """Notices weights that change too often for their folded form to pay off.

    Folded weights are dropped when the weights have changed or are gone, or when there are those of
    too many models. Once this has happened too often before they broke even, only weights that stay
    the same for as many calls are folded: those that change in each call, such as in training with
    a test after each step, never are.
    """

    def __init__(self) -> None:
        self._n_early = 0
        self._n_calls: OrderedDict[tuple[int, ...], tuple[Sequence[int], int]] = OrderedDict()

    def dropped(self, n_calls: int) -> None:
        """Notes that folded weights which so many calls have used were dropped."""
        self._n_early += n_calls < BREAK_EVEN_CALLS

    def pays_off(self, addresses: tuple[int, ...], versions: Sequence[int]) -> bool:
        """Whether to fold weights in a call for which there are no folded ones.

        Args:
            addresses: the weights' addresses.
            versions: their version counters.
        """
        if self._n_early < MAX_EARLY:
            return True
        before, n_calls = self._n_calls.pop(addresses, (versions, 0))
        n_calls = n_calls + 1 if before == versions else 1
        self._n_calls[addresses] = versions, n_calls
        while len(self._n_calls) > _MAX_COUNTED:
            self._n_calls.popitem(last=False)
        return n_calls > BREAK_EVEN_CALLS
