"""The allocator reuses freed blocks at once, only on their stream, and poisons new memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.devices.virtual.memory import Pool, weak_alias


def pool_and_freed() -> tuple[Pool, set[int], list[int]]:
    live, freed = set[int](), list[int]()

    def note(stream: int, _: torch.Tensor) -> None:
        freed.append(stream)

    return Pool(live, lambda: note), live, freed


def tensor_in(pool: Pool, stream: int = 0, n: int = 4) -> torch.Tensor:
    return torch.empty(0).set_(pool.allocate(stream, 4 * n), 0, (n,), (1,))


def test_fresh_memory_is_poison() -> None:
    pool, *_ = pool_and_freed()
    assert tensor_in(pool).isnan().all()
    assert (tensor_in(pool).view(torch.int32) == -1).all()


def test_a_freed_block_is_what_its_stream_gets_next_and_no_other() -> None:
    pool, live, freed = pool_and_freed()
    first = tensor_in(pool, stream=1)
    address = first.data_ptr()
    assert live == {address}
    del first
    assert (live, freed) == (set(), [1])
    assert tensor_in(pool, stream=0).data_ptr() != address
    again = tensor_in(pool, stream=1)
    assert again.data_ptr() == address
    assert tensor_in(pool, stream=1).data_ptr() != address


def test_a_view_keeps_its_block_and_a_tensor_that_does_not_own_it_does_not() -> None:
    pool, live, freed = pool_and_freed()
    whole = tensor_in(pool)
    view, bare = whole[1:], weak_alias(whole[2:])
    whole.fill_(3)
    assert torch.equal(bare, torch.full((2,), 3.0))
    del whole
    assert (len(live), freed) == (1, [])
    del view
    assert (live, freed) == (set(), [0])
    assert torch.equal(bare, torch.full((2,), 3.0))  # the memory is there as long as its pool


def test_a_small_block_is_not_handed_out_for_a_large_tensor() -> None:
    pool, *_ = pool_and_freed()
    small = tensor_in(pool, n=4)
    address = small.data_ptr()
    del small
    large = tensor_in(pool, n=5)
    assert large.data_ptr() != address
    assert tensor_in(pool, n=3).data_ptr() == address


@pytest.mark.parametrize("view", [torch.conj, lambda z: z.conj().imag])
def test_lazy_conjugates_and_negatives_stay_what_they_are(view: object) -> None:
    pool, *_ = pool_and_freed()
    z = torch.empty(0, dtype=torch.complex64).set_(pool.allocate(0, 32), 0, (4,), (1,))
    z.copy_(torch.tensor([1 + 2j, 3 - 4j, 5j, 6]))
    assert torch.equal(weak_alias(view(z)), view(z))  # type: ignore[operator]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 5)), max_size=30))
def test_live_tensors_never_share_memory(steps: list[tuple[int, int, int]]) -> None:
    pool, live, _ = pool_and_freed()
    held: list[torch.Tensor] = []
    for i, (stream, n, dropped) in enumerate(steps):
        held.append(tensor_in(pool, stream, n).fill_(i))
        if dropped < len(held):
            held.pop(dropped)
        assert live == {tensor.data_ptr() for tensor in held}
        assert all((tensor == tensor[0]).all() for tensor in held)
    assert len({tensor[0].item() for tensor in held}) == len(held)


def test_poison_spares_what_is_held() -> None:
    pool, *_ = pool_and_freed()
    held, freed = tensor_in(pool).zero_(), tensor_in(pool).zero_()
    bare = weak_alias(freed)
    del freed
    pool.poison_free()
    assert bare.isnan().all()
    assert torch.equal(held, torch.zeros(4))


def test_a_pool_knows_its_blocks_and_how_much_each_stream_has() -> None:
    pool, *_ = pool_and_freed()
    held = tensor_in(pool, stream=1, n=4).zero_()
    assert torch.equal(pool.block_of(held.untyped_storage()), torch.zeros(16, dtype=torch.uint8))
    tensor_in(pool, stream=1, n=2)
    tensor_in(pool, stream=1, n=2)
    assert (pool.nbytes(0), pool.nbytes(1)) == (0, 24)
