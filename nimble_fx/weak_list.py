"""A list that holds its items by weak references."""

from itertools import count
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Item = TypeVar("Item")


class WeakList(Generic[Item]):
    """A list that does not keep its items alive; threads may share it."""

    def __init__(self) -> None:
        self._items: WeakValueDictionary[int, Item] = WeakValueDictionary()
        self._numbers = count()

    def add(self, item: Item) -> None:
        """Appends an item."""
        self._items[next(self._numbers)] = item

    def all(self) -> tuple[Item, ...]:
        """The items that are still alive, oldest first."""
        references = self._items.valuerefs()  # atomic: other threads may add or free items
        return tuple(item for each in references if (item := each()) is not None)

    def clear(self) -> None:
        """Removes all items."""
        self._items.clear()
