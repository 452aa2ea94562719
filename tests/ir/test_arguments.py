"""Recursion over arguments reaches each leaf once and keeps the containers."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir.arguments import map_leaves
from nimble_fx.torch_internals.names import pytree

ARGUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.none() | st.booleans() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
)


@given(ARGUMENTS)
def test_it_is_the_map_of_pytorchs_own_trees(arg: Any) -> None:
    assert map_leaves(repr, arg) == pytree.tree_map(repr, arg)
    assert map_leaves(lambda leaf: leaf, arg) == arg


def test_the_parts_of_a_slice_are_leaves() -> None:
    assert map_leaves(lambda leaf: (leaf or 0) + 1, (slice(1, 2, None), 3)) == (slice(2, 3, 1), 4)
