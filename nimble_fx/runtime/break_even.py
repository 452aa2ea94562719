"""Decides whether a result that takes long to make will be used often enough to pay off."""

from collections import OrderedDict
from collections.abc import Hashable

_MAX_COUNTED = 64
"""The most keys whose calls are counted."""


class BreakEven:
    """Notices results that are dropped before they pay off, and then makes fewer of them.

    All are made until too many were dropped early. From then on only those whose key has been
    called for as many times as it takes to pay off: keys that are new in each call never are.
    """

    def __init__(self, n_calls: int, max_early: int) -> None:
        """Nothing was made yet.

        Args:
            n_calls: how many uses of a result save as much time as it takes to make it.
            max_early: how many results may be dropped before that.
        """
        self._break_even, self._max_early, self._n_early = n_calls, max_early, 0
        self._n_calls: OrderedDict[Hashable, int] = OrderedDict()

    def pays_off(self, key: Hashable) -> bool:
        """Whether to make the result for a key, in a call for which there is none; counts it."""
        if self._n_early < self._max_early:
            return True
        n_calls = self._n_calls.pop(key, 0) + 1
        self._n_calls[key] = n_calls
        while len(self._n_calls) > _MAX_COUNTED:
            self._n_calls.popitem(last=False)
        return n_calls > self._break_even  # not looked up: another thread may have removed it

    def made(self, key: Hashable) -> None:
        """Notes that the result for a key was made: its calls are counted anew."""
        self._n_calls.pop(key, None)

    def dropped(self, n_uses: int) -> None:
        """Counts a dropped result as early if it was used too few times to pay for itself."""
        self._n_early += n_uses < self._break_even
