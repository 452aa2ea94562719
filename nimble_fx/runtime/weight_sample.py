"""What is compared of a weight, to notice writes that PyTorch does not count."""

from ctypes import c_char
from math import ceil, prod

import torch
from torch import Tensor

from nimble_fx.runtime.shared_memory import byte_range

COMPARED_WHOLE = 16 * 1024
"""The most bytes of a weight that are compared in each call; of a larger one a part is."""

MAX_SAMPLED = 16 * 1024
"""The most elements that are compared of a large weight."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Dimensions = list[tuple[int, int]]
"""The extent and stride of each dimension, in elements."""


class WeightSample:
    """What is compared of a weight, in place.

    Of a large weight these are elements of a matrix, which has its outer dimensions in memory as
    rows and the inner ones as columns, or of several matrices, if it has three dimensions: one row,
    and one element of each row. So a write to a whole row, column or matrix meets one of them.
    Where these are more than `MAX_SAMPLED`, as of a long vector, as many of them are left.

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
    outer, column, row = _as_matrices(dimensions)
    matrices, rows, within = _offsets(outer), _offsets(column), _offsets(row)
    one_row = matrices[:, None] + rows[len(rows) // 2] + within
    starts = (matrices[:, None] + rows).view(-1)
    one_each = starts + within[torch.arange(len(starts)) % len(within)]  # not in one column
    places = torch.cat([one_row.view(-1), one_each])
    return places[:: ceil(len(places) / MAX_SAMPLED)].clone()


def _as_matrices(dimensions: _Dimensions) -> tuple[_Dimensions, _Dimensions, _Dimensions]:
    """The dimensions of the matrices, of their columns and of their rows.

    Three dimensions are several matrices, unless too much would be compared; others are one, with
    rows and columns of about the same length.
    """
    outer, inner = dimensions[:1], dimensions[1:]
    if len(dimensions) != 3 or _extent(outer) * sum(map(_extent, _split(inner))) > MAX_SAMPLED:
        outer, inner = [], dimensions
    return outer, *_split(inner)


def _split(dimensions: _Dimensions) -> tuple[_Dimensions, _Dimensions]:
    """The outer dimensions and the inner ones, with the least sum of their extents."""
    splits = [(dimensions[:k], dimensions[k:]) for k in range(len(dimensions))]
    return min(splits, key=lambda split: sum(map(_extent, split)))


def _extent(dimensions: _Dimensions) -> int:
    return prod(n for n, _ in dimensions)


def _offsets(dimensions: _Dimensions) -> Tensor:
    """The positions of all elements of an array that begins at 0."""
    offsets = torch.zeros(1, dtype=torch.int64)
    for n, stride in dimensions:
        offsets = (offsets[:, None] + torch.arange(n) * stride).view(-1)
    return offsets
