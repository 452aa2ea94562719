"""How to make the views of a tensor, or of a copy of it, that a mutating operator takes.

PyTorch keeps a view's offset from the beginning of the memory, as it is in the first call. The
tensors of later calls may begin elsewhere in theirs, so offsets here count from the beginning of
the tensor.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.fx import Node

from nimble_fx.ir.symbolic_sizes import extent
from nimble_fx.torch_internals.auto_functionalized import AsStrided, Slice, View
from nimble_fx.torch_internals.memory_formats import contiguous_order
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.symbolic import (
    are_known,
    are_same_sizes,
    hint,
    is_same_size,
    known_number,
)

_aten = torch.ops.aten

Size = int | SymInt
Step = tuple[OpOverload, tuple[Any, ...]]
"""An operator, and its arguments after the tensor."""


def steps_to_view(view: View, base: Tensor) -> list[Step] | None:
    """The calls that make a view, in order; none for a view of the whole.

    Args:
        view: one of `base`.
        base: the fake tensor.

    Returns:
        The calls; None if symbolic sizes do not tell where the view begins, or if it has memory
        outside of its base.
    """
    if isinstance(view, Slice):
        return _slice(view, base)
    if not isinstance(view, AsStrided):
        return []
    size, stride = [*map(_value, view.size)], [*map(_value, view.stride)]
    offset = _value(view.storage_offset) - base.storage_offset()
    selected = _selected(base, size, stride, offset)
    if selected is not None:
        return [(_aten.select.int, step) for step in reversed(selected)]
    begin, flat = known_number(offset), step_to_flat(base)
    if begin is None or flat is None or not _lies_in(base, size, stride, begin):
        return None
    part = (_aten.slice.Tensor, (0, begin))
    return [flat, part, (_aten.as_strided.default, ([*view.size], [*view.stride]))]


def step_to_flat(base: Tensor) -> Step | None:
    """The call that views the memory from a tensor's first element to its last as one dimension."""
    order = contiguous_order(base)
    if order is not None and order == sorted(order):
        return _aten.view.default, ([-1],)
    if are_known((*base.shape, *base.stride())):
        return _aten.as_strided.default, ([extent(base.shape, base.stride())], [1])
    return None


def _lies_in(base: Tensor, size: Sequence[Size], stride: Sequence[Size], begin: int) -> bool:
    """Whether a view has no memory outside of its base, in the first call."""
    own, whole = _extent(size, stride), _extent(base.shape, base.stride())
    return own is not None and whole is not None and 0 <= begin <= whole - own


def _extent(size: Sequence[Size], stride: Sequence[Size]) -> int | None:
    """The number of elements from the first to the last; None if it depends on data."""
    numbers: Any = [*map(hint, size)], [*map(hint, stride)]
    return None if any(None in each for each in numbers) else extent(*numbers)


def _slice(view: Any, base: Tensor) -> list[Step] | None:
    """A slice, which PyTorch counts from the beginning of the memory, too."""
    begin = base.storage_offset()
    if is_same_size(begin, 0):
        return [(_aten.slice.Tensor, (view.dim, view.start, view.end))]
    if not are_known((view.start, view.end, begin, base.stride(view.dim))):
        return None
    before = begin // base.stride(view.dim)
    return [(_aten.slice.Tensor, (view.dim, view.start - before, view.end - before))]


def _selected(
    base: Tensor, size: Sequence[Size], stride: Sequence[Size], offset: Size
) -> list[tuple[int, int]] | None:
    """The dimensions, in order, and indices that `base[:, 1]` selects; None for another view."""
    steps = list(zip(base.shape, base.stride(), strict=True))
    for dims in combinations(range(base.dim()), max(0, base.dim() - len(size))):
        kept = [step for dim, step in enumerate(steps) if dim not in dims]
        is_rest = are_same_sizes(size, [n for n, _ in kept])
        if is_rest and are_same_sizes(stride, [step for _, step in kept]):
            indices = _indices([steps[dim] for dim in dims], offset)
            if indices is not None:
                return list(zip(dims, indices, strict=True))
    return None


def _indices(steps: Sequence[tuple[Size, Size]], offset: Size) -> list[int] | None:
    """The indices in dimensions, by their sizes and strides, that an offset amounts to."""
    found = [0] * len(steps)
    for i in sorted(range(len(steps)), key=lambda i: hint(steps[i][1]) or 0, reverse=True):
        size, stride = steps[i]
        left, step, n = hint(offset), hint(stride), hint(size)
        if left is None or not step or not n:
            return None
        found[i] = int(min(left // step, n - 1))
        offset = offset - found[i] * stride
    return found if is_same_size(offset, 0) else None


def _value(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, Node) else number
