"""Notices optimizer steps, some of which write to weights without increasing their versions.

PyTorch's fused optimizers do so (`torch.optim.Adam(..., fused=True)`), and those of other packages
with kernels that PyTorch does not know.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from nimble_fx.torch_internals.dynamo.untraced import untraced
from nimble_fx.weak_list import WeakList


class StepsOn:
    """Watches for steps of optimizers with a parameter that shares a storage with given tensors.

    Attributes:
        happened: whether there was one since this object was made.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.happened = False
        self.memory = frozenset(map(_memory, tensors))
        _watchers.add(self)
        _watch_all_optimizers()


_watchers: WeakList[StepsOn] = WeakList()


@cache
def _watch_all_optimizers() -> None:
    register_optimizer_step_post_hook(untraced(_after_step))


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    watchers = _watchers.all()
    if not watchers:
        return
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    may_be_any = not all(map(_is_plain, parameters))
    written = set() if may_be_any else set(map(_memory, parameters))
    for watcher in watchers:
        if may_be_any or not written.isdisjoint(watcher.memory):
            watcher.happened = True


def _is_plain(parameter: Tensor) -> bool:
    """Whether a tensor has memory of its own; a subclass may hold its data in inner tensors."""
    return type(parameter) in (Tensor, nn.Parameter)


def _memory(tensor: Tensor) -> int:
    """The address of a tensor's storage; 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
