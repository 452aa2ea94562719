"""AOTAutograd's boxed calling convention: a call takes a list of inputs and empties it.

So inputs can be freed while the call runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Boxed = Callable[[list[Any]], Sequence[Any]]

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def boxed(run: _Callable) -> _Callable:
    """Marks a function, or a class whose objects are called, as one that follows the convention."""
    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for
    return run
