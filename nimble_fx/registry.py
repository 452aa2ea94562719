"""A list that keeps nothing alive."""

from itertools import count
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Thing = TypeVar("Thing")


class Living(Generic[Thing]):
    """What was added, for as long as somebody else holds it; threads may share it."""

    def __init__(self) -> None:
        self._things: WeakValueDictionary[int, Thing] = WeakValueDictionary()
        self._numbers = count()

    def add(self, thing: Thing) -> None:
        """Adds a thing at the end."""
        self._things[next(self._numbers)] = thing

    def all(self) -> tuple[Thing, ...]:
        """Those that live, oldest first."""
        references = self._things.valuerefs()  # one step, whoever adds or frees meanwhile
        return tuple(thing for each in references if (thing := each()) is not None)

    def clear(self) -> None:
        """Forgets all."""
        self._things.clear()
