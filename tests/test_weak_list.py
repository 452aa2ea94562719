"""A weak list keeps the order of its items, and keeps none alive."""

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.weak_list import WeakList


class Thing:
    """Something that can go."""


@given(st.lists(st.booleans()))
def test_those_that_are_held_are_listed_in_order(held: list[bool]) -> None:
    items: WeakList[Thing] = WeakList()
    kept = []
    for is_held in held:
        thing = Thing()
        items.add(thing)
        kept += [thing] if is_held else []
        del thing
    assert list(items.all()) == kept
    items.clear()
    assert items.all() == ()


def test_threads_may_add_and_free_while_others_list() -> None:
    items: WeakList[Thing] = WeakList()

    def add_free_and_list(_: int) -> bool:
        for _ in range(300):
            thing = Thing()
            items.add(thing)
            if thing not in items.all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(add_free_and_list, range(4)))
    assert items.all() == ()
