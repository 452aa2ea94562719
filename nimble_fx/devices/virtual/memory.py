"""A stream-ordered caching allocator like PyTorch's for CUDA, in the memory of the CPU.

It makes errors show: the block that was freed last on a stream is reused first, and memory that is
not written yet is poison.
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable

import torch

from nimble_fx.torch_internals.dynamo.untraced import when_freed
from nimble_fx.torch_internals.tensor_metadata import TensorMetadata

POISON = 0xFF
"""Each byte of uninitialized memory: NaN as floating-point numbers, -1 as integers."""

_ALIGNMENT = 64

Freed = Callable[[], Callable[[int, torch.Tensor], None] | None]
"""A weak reference to a callback that receives the stream and bytes of each freed block."""


class Pool:
    """A pool of memory blocks, each of which belongs to the stream that first allocated it."""

    def __init__(self, live: set[int], freed: Freed) -> None:
        """An empty pool.

        Args:
            live: the set of addresses in use, which the pool updates; pools may share it.
            freed: returns the callback for freed blocks, or None.
        """
        self._live, self._freed = live, freed
        self._blocks: dict[int, torch.Tensor] = {}
        self._segments: list[tuple[int, int]] = []
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)

    def allocate(self, stream: int, nbytes: int) -> torch.UntypedStorage:
        """Allocates memory on a stream; it is freed with the last reference to the storage."""
        block = self._take(stream, nbytes)
        address = block.data_ptr()
        owner = (ctypes.c_char * nbytes).from_address(address)
        self._live.add(address)
        when_freed(owner, Pool._release, self, stream, block)
        return _storage_of(owner)

    def block_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The bytes of the block that a storage of this pool is in."""
        return self._blocks[storage.data_ptr()]

    def nbytes(self, stream: int) -> int:
        """The bytes of a stream, in use or free."""
        return sum(nbytes for owner, nbytes in self._segments if owner == stream)

    def poison_free(self) -> None:
        """Overwrites the free blocks; call it when no kernel is under way."""
        for blocks in self._free.values():
            for block in blocks:
                poison(block)

    def _release(self, stream: int, block: torch.Tensor) -> None:
        self._live.discard(block.data_ptr())
        self._free[stream].append(block)
        freed = self._freed()
        if freed is not None:
            freed(stream, block)

    def _take(self, stream: int, nbytes: int) -> torch.Tensor:
        blocks = self._free[stream]
        for i in range(len(blocks) - 1, -1, -1):
            if blocks[i].nbytes >= nbytes:
                return blocks.pop(i)
        memory = torch.full((nbytes + _ALIGNMENT,), POISON, dtype=torch.uint8, device="cpu")
        block = memory[-memory.data_ptr() % _ALIGNMENT :][:nbytes]
        self._blocks[block.data_ptr()] = block
        self._segments.append((stream, block.nbytes))
        return block


def poison(block: torch.Tensor) -> None:
    """Overwrites a block of bytes."""
    block.fill_(POISON)


def weak_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the same memory that does not keep it alive."""
    storage = tensor.untyped_storage()
    same = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return TensorMetadata.of(tensor).on(_storage_of(same))


def _storage_of(memory: ctypes.Array[ctypes.c_char]) -> torch.UntypedStorage:
    """A storage on the memory of a ctypes object, which it keeps alive."""
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
