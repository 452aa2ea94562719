"""Compares results bit by bit: numbers, layouts, and which tensors share an object or memory."""

from collections.abc import Hashable, Iterable, Sequence
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def assert_same_bits(ours: Any, expected: Any, strides: bool = True) -> None:
    """The same structure, layouts and bits; any NaN is like any other.

    Args:
        ours: tensors and other values, in any structure.
        expected: likewise.
        strides: whether they must be the same too. Those that a few fake tensors promise are not
            those that the operator then makes.

    Raises:
        AssertionError: it says where, and shows both.
    """
    left, spec = pytree.tree_flatten(ours)
    right, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec, f"{spec} is not {expected_spec}"
    for i, (one, other) in enumerate(zip(left, right, strict=True)):
        found, wanted = layout(one, strides), layout(other, strides)
        assert found == wanted, f"leaf {i}: {found} is not {wanted}"
        assert _bits(one) == _bits(other), f"leaf {i}:\n{one}\nis not\n{other}"


def assert_same_sharing(ours: Sequence[Any], expected: Sequence[Any]) -> None:
    """The same values are one object, and the same tensors lie in one memory, at one offset.

    Raises:
        AssertionError: it shows both partitions.
    """
    assert len(ours) == len(expected)
    for key in (id, _storage, _offset):
        one, other = _partition(map(key, ours)), _partition(map(key, expected))
        assert one == other, f"by {key.__name__}: {one} is not {other}"


def layout(value: Any, strides: bool = True) -> tuple[Any, ...]:
    """Shape, strides, type of elements and device; the type alone of what is no tensor."""
    if not isinstance(value, Tensor):
        return (type(value),)
    geometry = (tuple(value.shape), value.stride() if strides else None)
    return *geometry, value.dtype, value.device.type


def _bits(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    plain = value.detach().resolve_conj().resolve_neg()
    flat = torch.view_as_real(plain) if plain.is_complex() else plain
    if flat.is_floating_point():
        flat = torch.where(flat.isnan(), torch.nan, flat)
    return bytes_of(flat)


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor's elements, in order; without NumPy, which need not be here."""
    elements = tensor.detach().cpu().contiguous()
    return string_at(elements.data_ptr(), elements.nbytes)


def _storage(value: Any) -> Hashable:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _offset(value: Any) -> Hashable:
    return (_storage(value), value.storage_offset()) if isinstance(value, Tensor) else None


def _partition(keys: Iterable[Hashable]) -> list[int]:
    """For each key, the position of the first one that is equal."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]
