"""What is compared of a weight, to notice writes that PyTorch does not count."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    """What is compared of a weight, in place; on a device other than the CPU no values are.

    Of a large weight these are elements of a matrix, which has its outer dimensions in memory as
    rows and the inner ones as columns, or of several matrices, if it has three dimensions: one row,
    and one element of each row. So a write to a whole row, column or matrix meets one of them.
    Where these are more than `MAX_SAMPLED`, evenly spaced ones of them are left.

    Attributes:
        address: of its first element.
        version: its version counter.
        storage: its memory; if that is freed, another weight may get it.
        bytes: all of a small weight without gaps; else nothing.
        words: the addresses of what is compared of another weight; empty for one that `bytes` has.
        word_size: how many bytes are compared at each of them.
    """

    bytes = memoryview(b"")
    words = torch.empty(0, dtype=torch.int64)

    def __init__(self, weight: Tensor) -> None:
        self.address, self.version = weight.data_ptr(), weight._version
        self.storage = weight.untyped_storage()
        self.word_size = min(weight.itemsize, max(_INTEGERS))
        if weight.device.type != "cpu":
            return
        start, end = byte_range(weight)
        dimensions = _in_memory_order(weight)
        nbytes = _n_elements(dimensions) * weight.itemsize if weight.numel() else 0
        is_small = nbytes <= COMPARED_WHOLE
        if is_small and end - start == nbytes:
            self.bytes = _memory(start, end)
            return
        places = _offsets(dimensions) if is_small else _places(dimensions)
        within = torch.arange(0, weight.itemsize, self.word_size)
        self.words = (start + weight.itemsize * places[:, None] + within).view(-1)


class SampledWords:
    """The words of several samples, read together.

    Cost: a few nanoseconds a word, and 3 microseconds for each size of words.
    """

    def __init__(self, samples: Iterable[WeightSample]) -> None:
        """Reads nothing yet; the weights' memory has to outlive the reads."""
        words = defaultdict[tuple[int, int], list[Tensor]](list)
        for sample in samples:
            if len(sample.words):
                words[sample.word_size, sample.address % sample.word_size].append(sample.words)
        self._parts = [_integers(size, torch.cat(each)) for (size, _), each in words.items()]

    def read(self) -> Sequence[Tensor]:
        """The words as they are now, as integers."""
        return [integers.index_select(0, places) for integers, places in self._parts]


def _integers(size: int, addresses: Tensor) -> tuple[Tensor, Tensor]:
    """Memory as integers of a size, and the positions of some addresses among them."""
    start, end = int(addresses.min()), int(addresses.max()) + size
    integers = torch.frombuffer(_memory(start, end), dtype=_INTEGERS[size])
    return integers, (addresses - start) // size


def _memory(start: int, end: int) -> memoryview:
    return memoryview((c_char * (end - start)).from_address(start)).cast("B")


def _in_memory_order(weight: Tensor) -> _Dimensions:
    """The dimensions of distinct elements, the outermost in memory first."""
    pairs = zip(weight.shape, weight.stride(), strict=True)
    return sorted([(n, s) for n, s in pairs if n > 1 and s > 0], key=lambda each: -each[1])


def _places(dimensions: _Dimensions) -> Tensor:
    """The positions of one row of each matrix, and of one element of each row, or of most."""
    outer, column, row = _as_matrices(dimensions)
    matrices, rows, within = _offsets(outer), _offsets(column), _offsets(row)
    starts = (matrices[:, None] + rows).view(-1)
    one_row = (matrices[:, None] + rows[len(rows) // 2] + within).view(-1)
    one_row = _thinned(one_row, max(MAX_SAMPLED // 2, MAX_SAMPLED - len(starts)))
    starts = _thinned(starts, MAX_SAMPLED - len(one_row))
    one_each = starts + within[torch.arange(len(starts)) % len(within)]  # not in one column
    return torch.cat([one_row, one_each])


def _thinned(places: Tensor, n: int) -> Tensor:
    """At most so many of some positions, evenly spaced."""
    return places[:: max(1, ceil(len(places) / n))]


def _as_matrices(dimensions: _Dimensions) -> tuple[_Dimensions, _Dimensions, _Dimensions]:
    """The dimensions of the matrices, of their columns and of their rows.

    Three dimensions are several matrices, unless too much would be compared; others are one, with
    rows and columns of about the same length.
    """
    outer, inner = dimensions[:1], dimensions[1:]
    if (
        len(dimensions) != 3
        or _n_elements(outer) * sum(map(_n_elements, _split(inner))) > MAX_SAMPLED
    ):
        outer, inner = [], dimensions
    return outer, *_split(inner)


def _split(dimensions: _Dimensions) -> tuple[_Dimensions, _Dimensions]:
    """The outer dimensions and the inner ones, with the least sum of their sizes."""
    splits = [(dimensions[:k], dimensions[k:]) for k in range(len(dimensions))]
    return min(splits, key=lambda split: sum(map(_n_elements, split)))


def _n_elements(dimensions: _Dimensions) -> int:
    return prod(n for n, _ in dimensions)


def _offsets(dimensions: _Dimensions) -> Tensor:
    """The positions of all elements of an array that begins at 0."""
    offsets = torch.zeros(1, dtype=torch.int64)
    for n, stride in dimensions:
        offsets = (offsets[:, None] + torch.arange(n) * stride).view(-1)
    return offsets
