"""Storages of tensors: what tells them apart, and who uses them."""

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage

from nimble_fx.torch_internals.names import neg_view, storage_use_count


def storage_key(tensor: Tensor) -> int:
    """A number that is the same for tensors in one storage; unlike addresses, also for empty ones.

    It is that of another storage once this one is gone.
    """
    return key_of_storage(tensor.untyped_storage())


def key_of_storage(storage: UntypedStorage) -> int:
    """The key of a storage itself; see `storage_key`."""
    key: int = storage._cdata
    return key


def n_uses(keys: Iterable[int]) -> int:
    """How many references there are to the storages of these keys, which must be alive."""
    return sum(map(storage_use_count, keys))


def with_math_bits(bare: Tensor, is_conj: bool, is_neg: bool) -> Tensor:
    """A view of `bare` whose elements are read as conjugated, negated, both, or neither."""
    bare = neg_view(bare) if is_neg else bare
    return torch.conj(bare) if is_conj else bare
