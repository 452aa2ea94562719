"""Frees what Dynamo's caches hold for one function that is no longer used.

Dynamo itself empties them for all functions at once, in `torch.compiler.reset()`, which also resets
the backends that have compiled since the last reset.
"""

import logging
from collections.abc import Callable
from types import CodeType
from typing import Any

from nimble_fx.torch_internals.names import Missing, lookup

_log = logging.getLogger(__name__)

BACKENDS = "torch._dynamo.eval_frame.cached_backends"
SIZES = "torch._dynamo.pgo._CODE_STATE"
RESET_CODE = "torch._dynamo.reset_code"


def drop_compiled(code: CodeType, backend: object) -> None:
    """Removes the compiled code of a code object, its backend, and the sizes it was called with.

    Args:
        code: the code of a function that will not be called again; its name is unique.
        backend: the backend that compiled this function and no other.
    """
    lookup(RESET_CODE)(code)
    _drop(BACKENDS, lambda _, cached: _users_backend(cached) is backend)
    _drop(SIZES, lambda key, _: key.name == code.co_name)


def reset_with_dynamo(backend: object) -> None:
    """Makes the next `torch.compiler.reset()` call `backend.reset`.

    PyTorch does so when a function is wrapped, but not for functions that are compiled again after
    a reset.
    """
    backends = lookup(BACKENDS)
    if not isinstance(backends, Missing):
        backends.setdefault(id(backend), backend)


def _users_backend(cached: Any) -> object:
    """The backend that `torch.compile` was called with, which Dynamo may have wrapped."""
    return getattr(cached, "compiler_fn", cached)


def _drop(table: str, is_unused: Callable[[Any, Any], bool]) -> None:
    entries = lookup(table)
    if isinstance(entries, Missing):
        _log.warning("this PyTorch has no %s: what it keeps of compiled models is not freed", table)
        return
    for key in [key for key, value in list((entries or {}).items()) if is_unused(key, value)]:
        entries.pop(key, None)
