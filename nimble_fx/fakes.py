"""Fake tensors, which have a type and no memory: operators on them only say what they return."""

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses import FakeTensor

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def are_fake(values: Iterable[Any]) -> bool:
    """Whether operators on these values, here and now, return fake tensors."""
    return FakeTensor in map(type, values) or torch._C._get_dispatch_mode(_FAKE) is not None
