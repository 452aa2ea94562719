"""Arguments: recursion over nested tuples, lists, dicts and slices, and picks of a flat list."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any


def map_leaves(function: Callable[[Any], Any], arg: Any) -> Any:
    """The argument with `function` applied to each leaf; containers keep their kind.

    Called between timed operators, so it is kept quick.
    """
    kind = type(arg)
    if kind is list or kind is tuple:
        return kind([map_leaves(function, item) for item in arg])
    if kind is dict:
        return {name: map_leaves(function, item) for name, item in arg.items()}
    if kind is slice:
        return slice(*[map_leaves(function, part) for part in (arg.start, arg.stop, arg.step)])
    return function(arg)


def items_at(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that returns the items of a list at some positions."""
    if len(positions) < 2:
        first = slice(positions[0], positions[0] + 1) if positions else slice(0)
        return itemgetter(first)
    return itemgetter(*positions)
