"""Fake tensors, which have a type and no memory: operators on them only infer types."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from nimble_fx.torch_internals.names import FakeTensor, lookup

_FAKE = lookup("torch._C._TorchDispatchModeKey.FAKE")
_dispatch_mode = lookup("torch._C._get_dispatch_mode")


def are_fake(values: Iterable[Any]) -> bool:
    """Whether operators on these values return fake tensors under the current dispatch modes."""
    return FakeTensor in map(type, values) or _dispatch_mode(_FAKE) is not None


@contextmanager
def unlogged_errors() -> Iterator[None]:
    """Keeps PyTorch from logging the traceback of an operator that does not take fake tensors."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(_refuse)
    try:
        yield
    finally:
        log.removeFilter(_refuse)


def _refuse(record: logging.LogRecord) -> bool:
    return False


def like(tensors: Sequence[Tensor], values: Sequence[Any]) -> Sequence[Tensor]:
    """The tensors themselves, or fake versions of them if `are_fake(values)`."""
    if not tensors or not are_fake(values):
        return tensors
    known = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    mode = next(known, None) or _dispatch_mode(_FAKE)
    return [mode.from_tensor(tensor) for tensor in tensors]
