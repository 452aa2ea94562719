"""A simulation of PyTorch's caching allocator, for the memory that a schedule reserves.

Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11, default settings, in a private pool. It
returns no memory to CUDA while a graph lives.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

BLOCK = 512
"""Block sizes are rounded up to multiples of this many bytes."""

SMALL = 1 << 20
"""The largest small block, in bytes; small blocks share segments with other small ones."""

SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MEDIUM = 10 << 20
"""Large blocks below this many bytes share segments of `LARGE_SEGMENT`; others have their own."""

SEGMENT_STEP = 2 << 20
"""Segments for one block are rounded up to multiples of this many bytes."""


def rounded(nbytes: int, step: int) -> int:
    """The least multiple of `step` that is at least `nbytes` and one step."""
    return max(1, -(-nbytes // step)) * step


def segment_bytes(nbytes: int) -> int:
    """The size of the segment that is allocated from CUDA for a block of a rounded size."""
    if nbytes <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if nbytes < MEDIUM else rounded(nbytes, SEGMENT_STEP)


@dataclass(eq=False)
class Block:
    """A piece of a segment.

    Attributes:
        pool: the stream of the segment, and whether it is for small blocks.
        address: the address of its first byte; segments are not adjacent.
        nbytes: its size.
        used: whether it is allocated.
        previous, following: its neighbours in the segment.
    """

    pool: tuple[int, bool]
    address: int
    nbytes: int
    used: bool = True
    previous: "Block | None" = None
    following: "Block | None" = None


class Allocator:
    """Allocates by best fit among the free blocks of a stream; splits a block if enough is left.

    Attributes:
        reserved: bytes of segments by stream; they are never returned to CUDA.
        peaks: the most bytes of each stream that were allocated at any moment.
        peak: the most bytes of all streams together.
    """

    def __init__(self) -> None:
        self.reserved: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self.peak = 0
        self._used: dict[int, int] = {}
        self._free: dict[tuple[int, bool], list[tuple[int, int, Block]]] = {}
        self._end = 0

    def allocate(self, nbytes: int, stream: int) -> Block:
        """A block of at least `nbytes` bytes, for use on a stream."""
        size = rounded(nbytes, BLOCK)
        pool = stream, size <= SMALL
        block = self._best_fit(size, pool) or self._new_segment(size, pool)
        block.used = True
        left = block.nbytes - size
        if left >= BLOCK if pool[1] else left > SMALL:
            self._split(block, size)
        self._count(stream, block.nbytes)
        return block

    def free(self, block: Block) -> None:
        """Frees a block at once, and merges it with its free neighbours."""
        block.used = False
        self._count(block.pool[0], -block.nbytes)
        for other in (block.previous, block.following):
            if other is not None and not other.used:
                self._remove_free(other)
                block = _merged(*sorted((block, other), key=lambda b: b.address))
        self._add_free(block)

    def _count(self, stream: int, nbytes: int) -> None:
        self._used[stream] = self._used.get(stream, 0) + nbytes
        self.peaks[stream] = max(self.peaks.get(stream, 0), self._used[stream])
        self.peak = max(self.peak, sum(self._used.values()))

    def _best_fit(self, size: int, pool: tuple[int, bool]) -> Block | None:
        """The smallest free block that is large enough, with the lowest address among equals."""
        free = self._free.setdefault(pool, [])
        i = bisect_left(free, size, key=lambda entry: entry[0])
        return free.pop(i)[2] if i < len(free) else None

    def _new_segment(self, size: int, pool: tuple[int, bool]) -> Block:
        nbytes = segment_bytes(size)
        self.reserved[pool[0]] = self.reserved.get(pool[0], 0) + nbytes
        self._end += nbytes
        return Block(pool, self._end - nbytes, nbytes)

    def _split(self, block: Block, size: int) -> None:
        """Shrinks a block to `size`; the rest becomes a free block."""
        rest = Block(block.pool, block.address + size, block.nbytes - size, False)
        rest.previous, rest.following = block, block.following
        if rest.following is not None:
            rest.following.previous = rest
        block.following, block.nbytes = rest, size
        self._add_free(rest)

    def _add_free(self, block: Block) -> None:
        free = self._free.setdefault(block.pool, [])
        insort(free, (block.nbytes, block.address, block), key=lambda entry: entry[:2])

    def _remove_free(self, block: Block) -> None:
        free = self._free[block.pool]
        free.pop(bisect_left(free, (block.nbytes, block.address), key=lambda entry: entry[:2]))


def _merged(first: Block, second: Block) -> Block:
    """Two neighbours as one block."""
    first.nbytes += second.nbytes
    first.following = second.following
    if first.following is not None:
        first.following.previous = first
    return first
