"""Removes from Dynamo's tables what they keep of a function whose life has ended.

Dynamo itself does this for all functions at once, in `torch.compiler.reset()`.
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
    """Drops what was compiled for a code object, its backend, and the sizes it was called with.

    Args:
        code: of a function that nobody will call any more, with a name that no other has.
        backend: what it was compiled with, and no other function.
    """
    lookup(RESET_CODE)(code)
    _drop(BACKENDS, lambda _, kept: _innermost(kept) is backend)
    _drop(SIZES, lambda key, _: key.name == code.co_name)


def _innermost(kept: Any) -> object:
    """The backend that `torch.compile` was called with."""
    return getattr(kept, "compiler_fn", kept)


def _drop(table: str, is_gone: Callable[[Any, Any], bool]) -> None:
    entries = lookup(table)
    if isinstance(entries, Missing):
        _log.warning("this PyTorch has no %s: what it keeps of compiled models is not freed", table)
        return
    for key in [key for key, value in list((entries or {}).items()) if is_gone(key, value)]:
        entries.pop(key, None)
