"""What is compared of a weight, to notice writes that PyTorch does not count."""

from ctypes import c_char
from math import prod

import torch
from torch import Tensor

from nimble_fx.runtime.shared_memory import byte_range

COMPARED_WHOLE = 16 * 1024
"""The most bytes of a weight that are compared in each call; of a larger one a part is."""

MIN_LENGTH = 32
"""The least length of a row and of a column in the matrices that a large weight is divided into."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Dimensions = list[tuple[int, int]]
"""The extent and stride of each dimension, in elements."""


class WeightSample:
    """What is compared of a weight, in place.

    Of a large weight these are elements of each of its matrices: one row, and one element of each
    row. So a write to a whole row, column or matrix meets one of them. A matrix is what the
    innermost dimensions in memory are, joined to rows and columns of at least `MIN_LENGTH`: of a
    convolution's contiguous weight, a row has the input channels and the positions in the window.

    Attributes:
        address: of its first element.
        version: its version counter.
        storage: its memory; if that is freed, another weight may get it.
        bytes: all of a small weight without gaps; else nothing.
        elements: the memory of another weight, as integers; empty for one that `bytes` has.
        places: the positions in `elements` of those that are compared.
    """

    bytes = memoryview(b"")
    elements = places = torch.empty(0, dtype=torch.int64)

    def __init__(self, weight: Tensor) -> None:
        self.address, self.version = weight.data_ptr(), weight._version
        self.storage = weight.untyped_storage()
        start, end = byte_range(weight)
        if start == end:
            return
        memory = (c_char * (end - start)).from_address(start)
        is_small = weight.nbytes <= COMPARED_WHOLE
        if is_small and end - start == weight.nbytes:
            self.bytes = memoryview(memory).cast("B")
            return
        dtype = _INTEGERS[min(weight.itemsize, 8)]
        self.elements = torch.frombuffer(memory, dtype=dtype)
        n = weight.itemsize // dtype.itemsize
        dimensions = _in_memory_order(weight)
        places = _offsets(dimensions) if is_small else _places(dimensions)
        self.places = (n * places[:, None] + torch.arange(n)).view(-1)

    def read(self) -> Tensor:
        """The elements that are compared, as they are now; for a weight that has `elements`."""
        return self.elements.index_select(0, self.places)


def _in_memory_order(weight: Tensor) -> _Dimensions:
    """The dimensions of distinct elements, the outermost in memory first."""
    pairs = zip(weight.shape, weight.stride(), strict=True)
    return sorted([(n, s) for n, s in pairs if n > 1 and s > 0], key=lambda each: -each[1])


def _places(dimensions: _Dimensions) -> Tensor:
    """The positions of one row of each matrix, and of one element of each row."""
    rest, row = _split(dimensions)
    outer, column = _split(rest)
    matrices, rows, within = _offsets(outer), _offsets(column), _offsets(row)
    one_row = matrices[:, None] + rows[len(rows) // 2] + within
    starts = (matrices[:, None] + rows).view(-1)
    one_each = starts + within[torch.arange(len(starts)) % len(within)]  # not in one column
    return torch.cat([one_row.view(-1), one_each])


def _split(dimensions: _Dimensions) -> tuple[_Dimensions, _Dimensions]:
    """The outer dimensions, and as few inner ones as have `MIN_LENGTH` elements."""
    k = len(dimensions)
    while k > 0 and prod(n for n, _ in dimensions[k:]) < MIN_LENGTH:
        k -= 1
    return dimensions[:k], dimensions[k:]


def _offsets(dimensions: _Dimensions) -> Tensor:
    """The positions of all elements of an array that begins at 0."""
    offsets = torch.zeros(1, dtype=torch.int64)
    for n, stride in dimensions:
        offsets = (offsets[:, None] + torch.arange(n) * stride).view(-1)
    return offsets
