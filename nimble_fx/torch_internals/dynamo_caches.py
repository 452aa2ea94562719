"""Taking out of Dynamo's tables what they keep of a function whose life has ended.

Dynamo itself does this for all functions at once, in `torch.compiler.reset()`. The tables have
private names: one that another PyTorch has not is passed over, and keeps what it keeps.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch._dynamo import eval_frame, pgo


def drop_compiled(code: CodeType, backend: object) -> None:
    """Drops what was compiled for a code object, its backend, and the sizes it was called with.

    Args:
        code: of a function that nobody will call any more, with a name that no other has.
        backend: what it was compiled with, and no other function.
    """
    torch._dynamo.reset_code(code)  # type: ignore[attr-defined]
    _drop(eval_frame, "cached_backends", lambda _, kept: _innermost(kept) is backend)
    _drop(pgo, "_CODE_STATE", lambda key, _: key.name == code.co_name)


def _innermost(kept: Any) -> object:
    """The backend that `torch.compile` was called with."""
    return getattr(kept, "compiler_fn", kept)


def _drop(module: object, table: str, is_gone: Callable[[Any, Any], bool]) -> None:
    entries: dict[Any, Any] = getattr(module, table, None) or {}
    for key in [key for key, value in list(entries.items()) if is_gone(key, value)]:
        entries.pop(key, None)
