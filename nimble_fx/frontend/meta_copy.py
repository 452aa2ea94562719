"""A copy of a module that has the structure and other tensors."""

import copy
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from nimble_fx.torch_internals.storages import key_of_storage

_Module = TypeVar("_Module", bound=nn.Module)


def meta_copy(model: _Module, replaced: Callable[[Tensor], Tensor]) -> _Module:
    """A deep copy of the module in which `replaced` stands for each parameter and buffer."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): replaced(tensor) for tensor in tensors})


class ToMeta:
    """Makes tensors of the "meta" device, which have types and no data, like those it is given.

    Those that share memory share it on the "meta" device too.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the "meta" device; cost: none that grows with its size."""
        storage, offset = self._storage(tensor), tensor.storage_offset()
        empty = torch.empty(0, dtype=tensor.dtype, device="meta")
        bare = empty.set_(storage, offset, tensor.shape, tensor.stride())
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(bare, tensor.requires_grad)
        return bare.requires_grad_(tensor.requires_grad)

    def _storage(self, tensor: Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        made = self._storages.get(key_of_storage(storage))
        if made is None:
            made = torch.UntypedStorage(storage.nbytes(), device="meta")  # type: ignore[no-untyped-call]
            self._storages[key_of_storage(storage)] = made
        return made
