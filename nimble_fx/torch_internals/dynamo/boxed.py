"""AOTAutograd's boxed calling convention: a call takes a list of inputs and empties it.

The callee can then free inputs while it runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Boxed = Callable[[list[Any]], Sequence[Any]]

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def boxed(run: _Callable) -> _Callable:
    """Marks a function, or a class with `__call__`, as following the convention."""
    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for
    return run
