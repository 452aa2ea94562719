"""Copies of modules with other tensors, such as tensors on the "meta" device."""

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nimble_fx.errors import UnsupportedError
from nimble_fx.frontend.models.deep_copy import deep_copy
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.storages import key_of_storage
from nimble_fx.torch_internals.tensor_metadata import TensorMetadata

_Module = TypeVar("_Module", bound=nn.Module)


def copy_with(model: _Module, replaced: Callable[[Tensor], Tensor]) -> _Module:
    """A deep copy of the module in which each parameter and buffer `x` is `replaced(x)`.

    Results that it has kept, which PyTorch does not copy, are copied without their history.
    """
    others = [tensor for part in model.modules() for tensor in tensors_in(vars(part))]
    memo = {id(tensor): tensor.detach().clone() for tensor in others if not tensor.is_leaf}
    tensors = chain(model.parameters(), model.buffers())
    return deep_copy(model, memo | {id(tensor): replaced(tensor) for tensor in tensors})


class ToMeta:
    """Converts tensors to the "meta" device, where they have types and no data.

    Tensors that share a storage share one on the "meta" device too, and views are views of one
    tensor, by which AOTAutograd computes those that are written anew.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._twins: dict[int, Tensor] = {}
        self._originals: list[Tensor] = []  # alive, or others would get their numbers

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the "meta" device; the cost does not depend on its size.

        Raises:
            UnsupportedError: it is sparse, nested or quantized, or has no shape yet.
        """
        if is_lazy(tensor):
            raise UnsupportedError(
                "a parameter or buffer has no shape yet, its module is lazy: call the model once "
                "before nimble_fx.plan"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = tensor.dtype if tensor.is_quantized else tensor.layout
            raise UnsupportedError(
                f"a tensor of shape {list(tensor.shape)} and {kind} is among the parameters, "
                "buffers or example inputs; a plan only takes strided tensors"
            )
        metadata, base = TensorMetadata.of(tensor), tensor._base
        if base is not None and _is_plain_view(tensor, base):
            return self(base).as_strided(metadata.shape, metadata.stride, metadata.offset)
        twin = self._twins.get(id(tensor))
        if twin is None:
            twin = metadata.on(self._storage(tensor)).requires_grad_(tensor.requires_grad)
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(twin.detach(), tensor.requires_grad)
            self._twins[id(tensor)] = twin
            self._originals.append(tensor)
        return twin

    def _storage(self, tensor: Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        meta = self._storages.get(key_of_storage(storage))
        if meta is None:
            meta = torch.UntypedStorage(storage.nbytes(), device="meta")  # type: ignore[no-untyped-call]
            self._storages[key_of_storage(storage)] = meta
        return meta


def _is_plain_view(tensor: Tensor, base: Tensor) -> bool:
    """Whether `as_strided` makes a view of its base, without a gradient."""
    storages = (x.untyped_storage() for x in (tensor, base))
    if len(set(map(key_of_storage, storages))) == 2:  # its data were replaced
        return False
    if tensor.requires_grad or base.requires_grad or tensor.dtype != base.dtype:
        return False
    return not any(x.is_conj() or x.is_neg() for x in (tensor, base))
