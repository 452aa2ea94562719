"""Callbacks that Python calls wherever memory is freed, also inside of compiled code.

Dynamo compiles each Python function that compiled code calls, and so these too if that code frees
the last reference to an object.
"""

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

from nimble_fx.torch_internals.names import lookup

_Callback = TypeVar("_Callback", bound=Callable[..., Any])


@cache
def untraced(callback: _Callback) -> _Callback:
    """A function that does the same, and that Dynamo leaves alone with all that it calls.

    Args:
        callback: a function of a module or class: it is kept for the rest of the process.
    """
    disabled: _Callback = torch.compiler.disable(callback)  # type: ignore[no-untyped-call]
    return disabled


def call_untraced(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function, while Dynamo leaves it alone with all that it calls."""
    call: Any = untraced(_call)
    return call(function, *args)


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def when_freed(owner: object, callback: Callable[..., None], *args: object) -> None:
    """Calls a function with these arguments once an object is gone, but not at exit.

    Dynamo traces neither the callback, which is as for `untraced`, nor Python's code around it.
    """
    lookup("torch._dynamo.eval_frame.skip_code")(weakref.finalize.__call__.__code__)
    weakref.finalize(owner, untraced(callback), *args).atexit = False
