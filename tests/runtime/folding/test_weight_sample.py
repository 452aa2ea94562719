"""A sample has elements of each row, column and matrix of a weight, whatever its layout."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.runtime.folding.weight_sample import (
    COMPARED_WHOLE,
    MAX_SAMPLED,
    SampledWords,
    WeightSample,
)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": torch.Tensor.contiguous,
    "channels last": lambda w: w.movedim(1, -1).contiguous().movedim(-1, 1),
    "transposed": lambda w: w.transpose(0, 1).contiguous().transpose(0, 1),
    "a chunk": lambda w: torch.cat([w, w, w], 1).chunk(3, 1)[1],
    "a part of each row": lambda w: torch.cat([w, w], -1)[..., : w.shape[-1]],
    "each other element": lambda w: w.repeat_interleave(2, -1)[..., ::2],
    "late in its memory": lambda w: torch.cat([w, w])[len(w) :],
}
SHAPES = [(64, 64, 3, 3), (96, 3, 11, 11), (1024, 16, 1, 1), (100, 300), (16, 999), (4, 99, 90)]
on_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def state(*samples: WeightSample) -> tuple[list[bytes], list[list[int]]]:
    """What is compared of some weights."""
    words = SampledWords(samples).read()
    return [bytes(sample.bytes) for sample in samples], [each.tolist() for each in words]


def is_noticed(weight: Tensor, part: Tensor) -> bool:
    """Whether a write to a part is, and what undoes it leads back."""
    sample = WeightSample(weight)
    before = state(sample)
    part.neg_()
    after = state(sample)
    part.neg_()
    assert state(sample) == before
    return after != before


@on_layouts
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_a_write_to_all_of_one_index_is_noticed(
    shape: tuple[int, ...], dtype: torch.dtype, layout: Callable[[Tensor], Tensor]
) -> None:
    weight = layout(torch.ones(shape, dtype=dtype))
    assert weight.nbytes > COMPARED_WHOLE
    for dimension, n in enumerate(shape):
        for i in {*range(0, n, max(n // 9, 1)), n - 1}:
            assert is_noticed(weight, weight.select(dimension, i)), (dimension, i)


@pytest.mark.parametrize(
    "shape", [(512, 1, 3, 3), (96, 1, 7, 7), (1, 600, 3, 3), (7, 11, 13, 17), (64, 128, 3, 3)]
)
@on_layouts
def test_a_write_to_a_kernel_position_is_noticed(
    shape: tuple[int, ...], layout: Callable[[Tensor], Tensor]
) -> None:
    weight = layout(torch.ones(shape))
    for i, j in product(*map(range, shape[2:])):
        assert is_noticed(weight, weight[:, :, i, j]), (i, j)


@on_layouts
def test_what_is_compared_of_kernel_positions_is_in_many_kernels(
    layout: Callable[[Tensor], Tensor],
) -> None:
    """A write that spares one channel of the input and of the output is noticed."""
    weight = layout(torch.ones(7, 11, 13, 17))
    positions = list(product(range(13), range(17)))
    noticed = [is_noticed(weight, weight[1:, 1:, i, j]) for i, j in positions]
    assert sum(noticed) > len(positions) / 2


@pytest.mark.parametrize("shape", [(16_000, 600), (600, 16_000), (16_384, 24), (40, 400, 400)])
def test_each_index_is_compared_up_to_the_limit(shape: tuple[int, ...]) -> None:
    weight = torch.ones(shape)
    places = (WeightSample(weight).words - weight.data_ptr()) // weight.itemsize
    indices = torch.unravel_index(places, shape)
    assert [len(index.unique()) for index in indices] == list(shape)


@pytest.mark.parametrize("shape", [(50_000, 64), (64, 50_000), (20_000, 768)])
def test_where_rows_are_too_many_each_column_is_still_compared(shape: tuple[int, int]) -> None:
    weight = torch.ones(shape)
    shorter = shape.index(min(shape))
    assert len(WeightSample(weight).words) <= 2 * MAX_SAMPLED
    for i in range(0, min(shape), 13):
        assert is_noticed(weight, weight.select(shorter, i)), i


@pytest.mark.parametrize("name", sorted({*LAYOUTS} - {"transposed"}))
@pytest.mark.parametrize("shape", [(4, 60, 50), (4, 1, 60, 50)])
def test_a_write_to_a_row_or_column_of_any_matrix_is_noticed(
    name: str, shape: tuple[int, ...]
) -> None:
    """Transposed, all of the weight is one matrix."""
    weight = LAYOUTS[name](torch.ones(shape))
    matrices = weight.squeeze(1) if weight.dim() == 4 else weight
    for expert, i in product(range(4), range(50)):
        assert is_noticed(weight, matrices[expert, i])
        assert is_noticed(weight, matrices[expert, :, i])


@on_layouts
@pytest.mark.parametrize("shape", [(3, 4, 2, 2), (50, 40), (1, 1)])
def test_any_write_to_a_small_weight_is_noticed(
    shape: tuple[int, ...], layout: Callable[[Tensor], Tensor]
) -> None:
    weight = layout(torch.ones(shape))
    for place in [(0,) * len(shape), tuple(n - 1 for n in shape), tuple(n // 2 for n in shape)]:
        assert is_noticed(weight, weight[place])


def test_what_lies_between_the_elements_is_not_compared() -> None:
    for n in (10, 200):
        memory = torch.ones(n, 3 * n)
        _, middle, last = memory.chunk(3, 1)
        assert not is_noticed(middle, last)


def test_empty_and_expanded_weights_are_sampled() -> None:
    assert state(WeightSample(torch.empty(0, 3))) == ([b""], [])
    one = torch.ones(1, 3)
    assert is_noticed(one.expand(5000, 3), one)
    same = torch.ones(1)
    assert is_noticed(same.expand(5000, 3), same)


@pytest.mark.parametrize(
    ("shape", "n"),
    [
        ((512, 512, 3, 3), 512 * 9 + 512 + 9),
        ((4, 99, 90), 4 * (99 + 90) + 90),
        ((64, 3, 7, 7), 64 + 147 + 49),
    ],
)
def test_a_sample_is_a_small_part(shape: tuple[int, ...], n: int) -> None:
    assert len(WeightSample(torch.ones(shape)).words) == n


@pytest.mark.parametrize("shape", [(2**20,), (2**18, 16), (512, 512, 5)])
def test_there_is_a_limit_to_what_is_compared(shape: tuple[int, ...]) -> None:
    sample = WeightSample(torch.ones(shape))
    assert 1000 < len(sample.words) <= 2 * MAX_SAMPLED


DTYPES = (
    *(torch.uint8, torch.int16, torch.float16, torch.float32, torch.int64, torch.float64),
    *(torch.complex64, torch.complex128),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("byte", [0, 255])
def test_bits_are_compared_whatever_they_mean(dtype: torch.dtype, byte: int) -> None:
    """Among these are no numbers, which differ from themselves, and zeros of both signs."""
    memory = torch.full((300, 100 * dtype.itemsize), byte, dtype=torch.uint8)
    sample = WeightSample(memory.view(dtype))
    before = state(sample)
    assert before == state(sample)
    for each_byte in range(dtype.itemsize):
        part = memory[150, each_byte :: dtype.itemsize]
        part.bitwise_xor_(128)
        assert before != state(sample), each_byte
        part.bitwise_xor_(128)
        assert before == state(sample)


def test_weights_of_all_types_are_read_together_wherever_they_begin() -> None:
    n = COMPARED_WHOLE + 1
    memories = [
        torch.ones(first_byte + n * dtype.itemsize, dtype=torch.uint8)[first_byte:].numpy()
        for dtype, first_byte in product(DTYPES, (0, 1, 4))  # few are aligned
    ]
    dtypes = [dtype for dtype in DTYPES for _ in range(3)]
    samples = [
        WeightSample(torch.frombuffer(memory, dtype=dtype))
        for memory, dtype in zip(memories, dtypes, strict=True)
    ]
    before = torch.cat([each.view(torch.uint8) for each in SampledWords(samples).read()])
    for memory, sample in zip(memories, samples, strict=True):
        memory ^= 1
        after = torch.cat([each.view(torch.uint8) for each in SampledWords(samples).read()])
        assert (after != before).sum() == len(sample.words) * sample.word_size > 0
        memory ^= 1


def test_a_sample_knows_its_weights_first_element_and_version() -> None:
    weight = torch.zeros(40, 40)[3:]
    weight.add_(1)
    sample = WeightSample(weight)
    assert sample.address == weight.data_ptr() != weight.untyped_storage().data_ptr()
    assert sample.version == weight._version > 0


def test_a_weight_of_as_many_bytes_as_are_compared_whole_is() -> None:
    weight = torch.ones(64, COMPARED_WHOLE // 4 // 64)
    assert all(is_noticed(weight, weight[i, j]) for i, j in product(range(0, 64, 9), repeat=2))


@pytest.mark.parametrize("shape", [(4096, 4096), (1024, 1024, 3, 3)])
def test_a_sample_is_made_without_an_index_of_all_elements(shape: tuple[int, ...]) -> None:
    sizes = list[int]()

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in [result] if isinstance(x, Tensor))
            return result

    weight = torch.ones(shape)
    with Sizes():
        WeightSample(weight)
    assert 0 < max(sizes) <= 2 * MAX_SAMPLED
