"""Arguments: recursion over nested tuples, lists, dicts and slices."""

from collections.abc import Callable
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
