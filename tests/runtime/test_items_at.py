"""Items at positions are those that indexing gives, in that order."""

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.runtime.items_at import items_at


@given(st.lists(st.integers(0, 9)))
def test_items_are_those_at_the_positions_in_their_order(positions: list[int]) -> None:
    letters = list("abcdefghij")
    assert list(items_at(positions)(letters)) == [letters[i] for i in positions]
