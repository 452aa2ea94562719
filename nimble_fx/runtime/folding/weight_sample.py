"""Samples of weights to compare, in order to notice writes that PyTorch does not count."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from ctypes import c_char
from itertools import count
from math import gcd, prod

import torch
from torch import Tensor

from nimble_fx.runtime.shared_memory import byte_range

COMPARED_WHOLE = 16 * 1024
"""The most bytes of a weight to compare as a whole; a larger weight is sampled."""

MAX_SAMPLED = 16 * 1024
"""The most rows, and the most columns, to compare of a large weight."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Dimensions = list[tuple[int, int]]
"""The extent and stride of each dimension, in elements."""


class WeightSample:
    """The part of a weight to compare, in place; on a device other than the CPU no values.

    A large weight is treated as a matrix whose rows are the outer dimensions in memory and whose
    columns are the inner ones (as several matrices, if it has three dimensions). The sample has one
    row, one element of each row, and one of each kernel position (of all but the first two
    dimensions), so that a write to a whole row, column, matrix or position changes one of its
    elements. If any of these are more than `MAX_SAMPLED`, the sample has evenly spaced ones.

    Attributes:
        address: the address of its first element.
        version: its version counter.
        storage: its memory; once that is freed, another weight may get it.
        bytes: the memory of a small weight without gaps; otherwise empty.
        words: the addresses of the sampled words of any other weight; empty if `bytes` is used.
        word_size: the bytes of each word.
    """

    bytes = memoryview(b"")
    words = torch.empty(0, dtype=torch.int64, device="cpu")

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
        places = _offsets(dimensions) if is_small else _places(dimensions, weight)
        within = torch.arange(0, weight.itemsize, self.word_size, device="cpu")
        self.words = (start + weight.itemsize * places[:, None] + within).view(-1)


class SampledWords:
    """The words of several samples, read together.

    Cost: a few nanoseconds a word, and 3 microseconds for each size of words.
    """

    def __init__(self, samples: Iterable[WeightSample]) -> None:
        """Reads nothing yet; the weights' memory must outlive the reads."""
        words = defaultdict[tuple[int, int], list[Tensor]](list)
        for sample in samples:
            if len(sample.words):
                words[sample.word_size, sample.address % sample.word_size].append(sample.words)
        self._parts = [_integers(size, torch.cat(each)) for (size, _), each in words.items()]

    def read(self) -> Sequence[Tensor]:
        """The current words, as integers."""
        return [integers.index_select(0, places) for integers, places in self._parts]


def _integers(size: int, addresses: Tensor) -> tuple[Tensor, Tensor]:
    """Memory as integers of a given size, and the positions of the addresses among them."""
    start, end = int(addresses.min()), int(addresses.max()) + size
    integers = torch.frombuffer(_memory(start, end), dtype=_INTEGERS[size])
    return integers, (addresses - start) // size


def _memory(start: int, end: int) -> memoryview:
    return memoryview((c_char * (end - start)).from_address(start)).cast("B")


def _in_memory_order(weight: Tensor) -> _Dimensions:
    """The dimensions with distinct elements, the outermost in memory first."""
    pairs = zip(weight.shape, weight.stride(), strict=True)
    return sorted([(n, s) for n, s in pairs if n > 1 and s > 0], key=lambda each: -each[1])


def _places(dimensions: _Dimensions, weight: Tensor) -> Tensor:
    """The positions of one row of each matrix, of one element of each row, and of the kernel."""
    outer, column, row = _as_matrices(dimensions)
    matrices, rows = _offsets(outer), _offsets(column)
    one_row = (matrices[:, None] + rows[len(rows) // 2] + _offsets(row)).view(-1)
    one_each = _with_scattered((matrices[:, None] + rows).view(-1), row)
    pairs = list(zip(weight.shape, weight.stride(), strict=True))
    kernel = _with_scattered(_offsets(pairs[2:]), pairs[:2])
    return torch.cat([_thinned(one_row), one_each, kernel])


def _thinned(places: Tensor) -> Tensor:
    """At most `MAX_SAMPLED` of the positions, evenly spaced."""
    n = min(len(places), MAX_SAMPLED)
    return places[torch.arange(n, device="cpu") * len(places) // n]


def _with_scattered(places: Tensor, others: _Dimensions) -> Tensor:
    """Adds an offset in other dimensions to each position, so that they are in no pattern.

    Multiples of the golden section are far from each other modulo 1.
    """
    kept, n = _thinned(places), _n_elements(others)
    step = next(step for step in count(max(1, round(0.618 * n))) if gcd(step, n) == 1)
    index = torch.arange(len(kept), device="cpu") * step % n
    for extent, stride in reversed(others):
        kept, index = kept + index % extent * stride, index // extent
    return kept


def _as_matrices(dimensions: _Dimensions) -> tuple[_Dimensions, _Dimensions, _Dimensions]:
    """The dimensions of the matrices, of their columns and of their rows.

    A weight of three dimensions is several matrices, unless the sample would be too large. Any
    other weight is one matrix, with rows and columns of about the same length.
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
    """The offsets of all elements of an array that begins at 0."""
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for n, stride in dimensions:
        offsets = (offsets[:, None] + torch.arange(n, device="cpu") * stride).view(-1)
    return offsets
