"""Compares which elements of one memory two views contain, by their fake tensors."""

from torch import Tensor

from nimble_fx.torch_internals.storages import is_nested
from nimble_fx.torch_internals.symbolic import are_same_sizes, is_same_size


def is_same_part(one: Tensor, other: Tensor) -> bool:
    """Whether two views of a memory have the same elements at the same indices.

    False if symbolic sizes do not prove it.
    """
    return (
        is_same_size(one.storage_offset(), other.storage_offset())
        and have_same_layout(one, other)
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


def have_same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same type of elements, shape and strides."""
    return (
        one.dtype == other.dtype
        and are_same_sizes(one.shape, other.shape)
        and are_same_sizes(one.stride(), other.stride())
    )


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor without gaps is as large as its memory."""
    nbytes = tensor.numel() * tensor.itemsize
    is_first = is_same_size(tensor.storage_offset(), 0)
    return is_first and is_same_size(tensor.untyped_storage().nbytes(), nbytes)


def are_disjoint(one: Tensor, other: Tensor, whole: Tensor) -> bool:
    """Whether two views of a tensor have no element in common.

    False if that cannot be proved: a view is not a box of the tensor's indices, a size is symbolic,
    or several indices of the tensor may be one element.
    """
    first, second = _box(one, whole), _box(other, whole)
    if first is None or second is None:
        return False
    return any(a.stop <= b.start or b.stop <= a.start for a, b in zip(first, second, strict=True))


def _box(part: Tensor, whole: Tensor) -> list[range] | None:
    """The range of a tensor's indices that a view covers in each dimension; None if not a box."""
    numbers = (*whole.shape, *whole.stride(), *part.shape, *part.stride())
    offset = part.storage_offset() - whole.storage_offset()
    if not isinstance(offset, int) or not all(isinstance(n, int) for n in numbers):
        return None
    if not is_nested(whole):
        return None
    dimensions = [(step, n) for step, n in zip(part.stride(), part.shape, strict=True) if n != 1]
    sizes, box = dict(dimensions), []
    if part.dtype != whole.dtype or len(sizes) < len(dimensions):
        return None
    for stride, n in sorted(zip(whole.stride(), whole.shape, strict=True), reverse=True):
        if n == 1:
            continue
        begin, offset = divmod(offset, stride)
        end = begin + sizes.pop(stride, 1)
        if not 0 <= begin <= end <= n:
            return None
        box.append(range(begin, end))
    return None if sizes or offset else box
