"""PyTorch's caching allocator, played by its rules: what memory a schedule makes it take.

Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11, default settings, in a private pool, from
which nothing goes back to CUDA while a graph lives.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

BLOCK = 512
"""Bytes that sizes are rounded up to."""

SMALL = 1 << 20
"""Up to so many bytes a block is small, and lies in a segment with other small ones."""

SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MEDIUM = 10 << 20
"""Below so many bytes a large block gets a segment of `LARGE_SEGMENT`, from there on its own."""

SEGMENT_STEP = 2 << 20
"""Segments of their own are rounded up to multiples of so many bytes."""


def rounded(nbytes: int, step: int) -> int:
    """The least multiple of `step` that holds `nbytes`; one step for nothing."""
    return max(1, -(-nbytes // step)) * step


def segment_bytes(nbytes: int) -> int:
    """What is asked of CUDA for a block of a rounded size."""
    if nbytes <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if nbytes < MEDIUM else rounded(nbytes, SEGMENT_STEP)


@dataclass(eq=False)
class Block:
    """A piece of a segment.

    Attributes:
        pool: the stream that the segment belongs to, and whether it is for small blocks.
        address: of its first byte; segments lie apart.
        nbytes: its size.
        used: whether it is handed out.
        before, behind: its neighbours in the segment.
    """

    pool: tuple[int, bool]
    address: int
    nbytes: int
    used: bool = True
    before: "Block | None" = None
    behind: "Block | None" = None


class Allocator:
    """Hands out blocks: the smallest free one of the stream that fits, split if enough is left.

    Attributes:
        reserved: bytes taken of CUDA, by stream; they are never given back.
        peaks: the most bytes of each stream that were handed out at any moment.
        peak: the most of all together.
    """

    def __init__(self) -> None:
        self.reserved: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self.peak = 0
        self._used: dict[int, int] = {}
        self._free: dict[tuple[int, bool], list[tuple[int, int, Block]]] = {}
        self._end = 0

    def allocate(self, nbytes: int, stream: int) -> Block:
        """A block of at least so many bytes, for use on a stream."""
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
        """Takes a block back, at once, and joins it with the free ones beside it."""
        block.used = False
        self._count(block.pool[0], -block.nbytes)
        for other in (block.before, block.behind):
            if other is not None and not other.used:
                self._take(other)
                block = _joined(*sorted((block, other), key=lambda b: b.address))
        self._put(block)

    def _count(self, stream: int, nbytes: int) -> None:
        self._used[stream] = self._used.get(stream, 0) + nbytes
        self.peaks[stream] = max(self.peaks.get(stream, 0), self._used[stream])
        self.peak = max(self.peak, sum(self._used.values()))

    def _best_fit(self, size: int, pool: tuple[int, bool]) -> Block | None:
        """The smallest free block that is large enough; of several, the one that lies first."""
        free = self._free.setdefault(pool, [])
        i = bisect_left(free, size, key=lambda entry: entry[0])
        return free.pop(i)[2] if i < len(free) else None

    def _new_segment(self, size: int, pool: tuple[int, bool]) -> Block:
        nbytes = segment_bytes(size)
        self.reserved[pool[0]] = self.reserved.get(pool[0], 0) + nbytes
        self._end += nbytes
        return Block(pool, self._end - nbytes, nbytes)

    def _split(self, block: Block, size: int) -> None:
        """Cuts a block to `size`; the rest is free."""
        rest = Block(block.pool, block.address + size, block.nbytes - size, False)
        rest.before, rest.behind = block, block.behind
        if rest.behind is not None:
            rest.behind.before = rest
        block.behind, block.nbytes = rest, size
        self._put(rest)

    def _put(self, block: Block) -> None:
        free = self._free.setdefault(block.pool, [])
        insort(free, (block.nbytes, block.address, block), key=lambda entry: entry[:2])

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        free.pop(bisect_left(free, (block.nbytes, block.address), key=lambda entry: entry[:2]))


def _joined(first: Block, second: Block) -> Block:
    """Two neighbours as one."""
    first.nbytes += second.nbytes
    first.behind = second.behind
    if first.behind is not None:
        first.behind.before = first
    return first
