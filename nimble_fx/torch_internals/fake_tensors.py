"""Fake tensors, which have a type and no memory: operators on them only say what they return."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from nimble_fx.torch_internals.names import FakeTensor, lookup

_FAKE = lookup("torch._C._TorchDispatchModeKey.FAKE")
_dispatch_mode = lookup("torch._C._get_dispatch_mode")


def are_fake(values: Iterable[Any]) -> bool:
    """Whether operators on these values, here and now, return fake tensors."""
    return FakeTensor in map(type, values) or _dispatch_mode(_FAKE) is not None


def like(tensors: Sequence[Tensor], values: Sequence[Any]) -> Sequence[Tensor]:
    """The tensors, as fake ones if operators on the values return such."""
    if not tensors or not are_fake(values):
        return tensors
    known = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    mode = next(known, None) or _dispatch_mode(_FAKE)
    return [mode.from_tensor(tensor) for tensor in tensors]
