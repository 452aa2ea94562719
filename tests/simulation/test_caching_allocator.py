"""The allocator follows PyTorch's rules: blocks never overlap, and are reused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.simulation.caching_allocator import (
    BLOCK,
    LARGE_SEGMENT,
    SMALL_SEGMENT,
    Allocator,
    Block,
)

MIB = 1 << 20
SIZES = st.one_of(st.integers(0, 4096), st.integers(1, 40).map(lambda n: n * MIB // 2))


@pytest.mark.parametrize(
    ("nbytes", "reserved"),
    [
        (1, SMALL_SEGMENT),
        (MIB, SMALL_SEGMENT),
        (MIB + 1, LARGE_SEGMENT),
        (10 * MIB - BLOCK, LARGE_SEGMENT),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
    ],
)
def test_segments_have_pytorchs_sizes(nbytes: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.allocate(nbytes, 0)
    assert allocator.reserved == {0: reserved}


def test_streams_do_not_share_blocks_but_one_stream_uses_them_again() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(5 * MIB, 0))
    allocator.allocate(5 * MIB, 0)
    assert allocator.reserved == {0: LARGE_SEGMENT}
    allocator.allocate(5 * MIB, 1)
    assert allocator.reserved == {0: LARGE_SEGMENT, 1: LARGE_SEGMENT}
    assert (allocator.peaks, allocator.peak) == ({0: 5 * MIB, 1: 5 * MIB}, 10 * MIB)


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(n * MIB, 0) for n in (8, 2, 6, 2)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert allocator.allocate(6 * MIB, 0).address == 8 * MIB + 2 * MIB


def test_a_large_blocks_rest_is_split_off_only_if_it_is_more_than_a_mib() -> None:
    allocator = Allocator()
    first = allocator.allocate(19 * MIB + 512, 0)  # a segment of its own, of 20 MiB
    assert first.nbytes == 20 * MIB
    allocator.free(first)
    assert allocator.allocate(12 * MIB, 0).nbytes == 12 * MIB
    assert allocator.reserved == {0: 20 * MIB}


def test_a_rest_of_just_one_mib_is_not_split_off() -> None:
    allocator = Allocator()
    first = allocator.allocate(20 * MIB, 0)
    allocator.free(first)
    assert allocator.allocate(19 * MIB, 0).nbytes == 20 * MIB


@given(st.lists(st.tuples(SIZES, st.integers(0, 2), st.booleans(), st.integers(0, 99))))
def test_blocks_in_use_never_overlap_and_what_all_streams_gave_back_is_one_block_a_segment(
    steps: list[tuple[int, int, bool, int]],
) -> None:
    allocator = Allocator()
    used: list[Block] = []
    for nbytes, stream, frees, which in steps:
        if frees and used:
            allocator.free(used.pop(which % len(used)))
        else:
            used.append(allocator.allocate(nbytes, stream))
            assert used[-1].nbytes >= max(nbytes, BLOCK)
        spans = sorted((b.address, b.address + b.nbytes) for b in used)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert sum(b.nbytes for b in used) <= allocator.peak <= sum(allocator.reserved.values())
    for block in used:
        allocator.free(block)
    before = dict(allocator.reserved)
    for nbytes, stream, frees, _ in steps:  # everything fits into what is there
        if not frees:
            allocator.free(allocator.allocate(nbytes, stream))
    assert allocator.reserved == before
