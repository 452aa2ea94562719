"""Restores the values of tensors after a block, and where in memory they are."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import NamedTuple, Self

import torch
from torch import Tensor

from nimble_fx.ir.symbolic_sizes import extent
from nimble_fx.torch_internals.names import is_wrapper_subclass
from nimble_fx.torch_internals.storages import is_nested, storage_key


@contextmanager
def restored_values(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores tensors that the block writes to, moves or resizes, however it ends.

    An error in restoring one keeps none of the others from being restored. Fake tensors and those
    on "meta", which have no values, are only moved back.

    Cost: a copy of their memory on the host, once where they share it; only tensors that were
    written to are copied back.
    """
    plain = [tensor for tensor in tensors if _has_storage(tensor)]
    with ExitStack() as stack:
        for tensor in plain:
            stack.callback(_move_back, tensor, tensor.detach(), _Place.of(tensor))
        with_data = [t for t in plain if t.untyped_storage().device.type != "meta"]
        for _, sharing in groupby(sorted(with_data, key=storage_key), storage_key):
            for group in _apart([*sharing]):
                stack.callback(_Memory(group).restore)  # before tensors move back to it
        for tensor in tensors:
            if not _has_storage(tensor) and not tensor.is_meta:
                value = tensor.detach().to("cpu", copy=True)
                stack.callback(_copy_back, tensor, value, _version(tensor))
        yield


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not is_wrapper_subclass(tensor)


class _Place(NamedTuple):
    """A tensor's storage and layout, which `set_`, `resize_`, `.data` and others change."""

    storage: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_conj: bool
    is_neg: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        place = storage_key(tensor), int(tensor.storage_offset()), tensor.shape, tensor.stride()
        return cls(*place, tensor.dtype, tensor.is_conj(), tensor.is_neg())


def _move_back(tensor: Tensor, original: Tensor, place: _Place) -> None:
    if _Place.of(tensor) != place:
        tensor.data = original


class _Memory:
    """The bytes of a part of a storage that these tensors have, which may overlap each other."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._storage = tensors, tensors[0].untyped_storage()
        self._nbytes = self._storage.nbytes()
        ranges = [*map(_byte_range, tensors)]
        self._range = slice(ranges[0][0], max(end for _, end in ranges))
        self._elements = [*map(_element_bytes, tensors)]
        self._before = self._bytes()[self._range].to("cpu", copy=True)

    def restore(self) -> None:
        """Restores the storage's size and these bytes; counts that as a write to their tensors."""
        if self._storage.nbytes() != self._nbytes:
            self._storage.resize_(self._nbytes)
        bytes_now = self._bytes()
        # Versions do not tell: BatchNorm updates its statistics without a new one.
        differs = bytes_now[self._range].cpu() != self._before
        if not differs.any():
            return
        for tensor, (size, stride, begin) in zip(self._tensors, self._elements, strict=True):
            place = size, stride, begin - self._range.start
            if differs.as_strided(*place).any():
                bytes_now.as_strided(size, stride, begin).copy_(self._before.as_strided(*place))
                torch.autograd.graph.increment_version(tensor)

    def _bytes(self) -> Tensor:
        empty = torch.empty(0, dtype=torch.uint8, device=self._storage.device)
        return empty.set_(self._storage)


def _apart(tensors: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Tensors of one storage, in groups whose ranges of bytes do not overlap."""
    group: list[Tensor] = []
    last = 0
    for tensor in sorted(tensors, key=_byte_range):
        begin, end = _byte_range(tensor)
        if group and begin >= last:
            yield group
            group = []
        group.append(tensor)
        last = max(last, end)
    if group:
        yield group


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's first byte is in its storage, and where its last one ends."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    return begin, begin + extent(tensor.shape, tensor.stride()) * tensor.itemsize


def _element_bytes(tensor: Tensor) -> tuple[list[int], list[int], int]:
    """The sizes, strides and offset of a tensor's elements as bytes of its storage.

    If elements overlap each other, so that one cannot write to each of them, all bytes from the
    first to the last.
    """
    begin, end = _byte_range(tensor)
    if not is_nested(tensor):
        return [end - begin], [1], begin
    strides = [step * tensor.itemsize for step in tensor.stride()]
    return [*tensor.shape, tensor.itemsize], [*strides, 1], begin


def _copy_back(tensor: Tensor, value: Tensor, version: int) -> None:
    """Restores a tensor without a storage of its own."""
    if _version(tensor) != version:
        with torch.no_grad():
            tensor.copy_(value)


def _version(tensor: Tensor) -> int:
    """Autograd's version counter, which in-place writes advance; an inference tensor has none."""
    return 0 if tensor.is_inference() else tensor._version
