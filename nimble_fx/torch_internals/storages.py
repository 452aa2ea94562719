"""Storages of tensors: their identity, and how many references they have."""

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage

from nimble_fx.torch_internals.names import lookup, neg_view, storage_use_count

_overlapping = lookup("torch._C._dynamo.guards.compute_overlapping_tensors")


def storage_key(tensor: Tensor) -> int:
    """A number that identifies a tensor's storage; unlike an address, also an empty storage.

    A later storage may get the same number once this one is freed.
    """
    return key_of_storage(tensor.untyped_storage())


def key_of_storage(storage: UntypedStorage) -> int:
    """The key of a storage itself; see `storage_key`."""
    key: int = storage._cdata
    return key


def may_overlap(one: Tensor, other: Tensor) -> bool:
    """Whether AOTAutograd treats two tensors whose ranges of addresses overlap as aliases.

    If it can tell that they share no element, it passes them to a graph as separate inputs.
    """
    is_one_storage = storage_key(one) == storage_key(other)
    return not is_one_storage or bool(_overlapping([one, other], False))


def n_uses(keys: Iterable[int]) -> int:
    """The number of references to the storages with these keys, which must be alive."""
    return sum(map(storage_use_count, keys))


def is_nested(tensor: Tensor) -> bool:
    """Whether a step in each dimension passes all elements of the dimensions with smaller steps.

    Then no two elements share memory.
    """
    extent = 1
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n != 1:
            if stride < extent:
                return False
            extent += stride * (n - 1)
    return True


def memory_like(x: Tensor) -> Tensor:
    """An uninitialized tensor with the same sizes, strides, type, device and math bits."""
    bare = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return with_math_bits(bare, x.is_conj(), x.is_neg())


def with_math_bits(bare: Tensor, is_conj: bool, is_neg: bool) -> Tensor:
    """A view of `bare` with the conjugate bit, the negative bit, both, or neither set."""
    bare = neg_view(bare) if is_neg else bare
    return torch.conj(bare) if is_conj else bare
