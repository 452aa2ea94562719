"""Overlaps of tensors in memory, against a comparison of all their elements."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nimble_fx.ir.task_graph import Input
from nimble_fx.ir.types import TensorType
from nimble_fx.runtime.shared_memory import SharedMemory

CPU = torch.device("cpu")


def an_input(name: str, *holds: str) -> Input:
    return Input(name, TensorType((1,), (1,), torch.float32, CPU), holds)


def elements(tensor: Tensor) -> set[int]:
    """The addresses of its elements."""
    at = [0]
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        at = [base + i * step for base in at for i in range(n)]
    return {tensor.data_ptr() + i * tensor.itemsize for i in at} if tensor.numel() else set()


@st.composite
def parts(draw: st.DrawFn, flat: Tensor) -> Tensor:
    """A contiguous part of a tensor, or a tensor of its own."""
    start, n = draw(st.integers(0, 8)), draw(st.integers(0, 6))
    part = flat[start : start + n]
    return part.clone() if draw(st.integers(0, 3)) == 0 else part


@given(st.data())
def test_two_inputs_are_found_exactly_if_they_overlap_and_one_is_written(
    data: st.DataObject,
) -> None:
    flat = torch.zeros(12)
    values = data.draw(st.lists(parts(flat), min_size=2, max_size=5))
    names = [f"v{i}" for i in range(len(values))]
    holds = [data.draw(st.sampled_from([name, name, "common"])) for name in names]
    written = data.draw(st.sets(st.sampled_from(names)))
    inputs = [an_input(name, label) for name, label in zip(names, holds, strict=True)]
    expected = {
        (names[i], names[j])
        for j in range(len(values))
        for i in range(j)
        if elements(values[i]) & elements(values[j])
        and not written.isdisjoint((names[i], names[j]))
        and holds[i] != holds[j]
    }
    found = SharedMemory(inputs, written).found(values)
    assert found in expected if expected else found is None


def test_a_change_of_an_address_or_a_number_is_noticed() -> None:
    flat = torch.zeros(8)
    memory = SharedMemory([an_input("x", "x"), an_input("y", "y")], {"x"})
    assert memory.found([flat[:4], flat[4:]]) is None
    assert memory.found([flat[:4], flat[4:]]) is None
    assert memory.found([flat[:4], flat[3:]]) == ("x", "y")
    assert memory.found([flat[:4], flat[3:]]) == ("x", "y")
    assert memory.found([flat[:4], flat[4:]]) is None


def test_one_byte_is_an_overlap_and_no_element_is_none() -> None:
    flat = torch.zeros(8, dtype=torch.uint8)
    memory = SharedMemory([an_input("x", "x"), an_input("y", "y")], {"x"})
    assert memory.found([flat[:4], flat[3:]]) == ("x", "y")
    assert memory.found([flat[:4], flat[2:2]]) is None


def test_a_tensor_with_gaps_reaches_to_its_last_element() -> None:
    flat = torch.zeros(8)
    memory = SharedMemory([an_input("x", "x"), an_input("y", "y")], {"x"})
    assert memory.found([flat[::2], flat[6:7]]) == ("x", "y")


def test_what_shared_memory_when_traced_does_not_count_and_hides_nothing() -> None:
    flat = torch.zeros(8)
    inputs = [an_input("x", "common"), an_input("y", "common"), an_input("z", "z")]
    assert SharedMemory(inputs[:2], {"x"}).found([flat, flat[1:2]]) is None
    assert SharedMemory(inputs, {"x"}).found([flat, flat[1:2], flat[4:5]]) == ("x", "z")


@given(st.data())
def test_with_fused_kernels_parts_of_one_storage_are_found_if_they_overlap(
    data: st.DataObject,
) -> None:
    flat = torch.zeros(12)
    one, other = (data.draw(parts(flat)) for _ in range(2))
    inputs = [an_input("x", "common"), an_input("y", "common")]
    found = SharedMemory(inputs, {"x"}, has_fused_kernels=True).found([one, other])
    assert (found is not None) == bool(elements(one) & elements(other))


def test_so_are_columns_of_one_matrix() -> None:
    matrix = torch.zeros(3, 4)
    same_memory = torch.from_numpy(matrix.numpy())

    def found(one: Tensor, other: Tensor) -> tuple[str, str] | None:
        inputs = [an_input("x", "common"), an_input("y", "common")]
        return SharedMemory(inputs, {"y"}, has_fused_kernels=True).found([one, other])

    assert found(matrix[:, :2], matrix[:, 2:]) is None
    assert found(matrix[:, :3], matrix[:, 2:]) == ("x", "y")
    assert found(matrix[:, :3], same_memory[:, 3:]) == ("x", "y")


def test_interleaved_elements_count_as_an_overlap() -> None:
    flat = torch.zeros(8)
    memory = SharedMemory([an_input("x", "x"), an_input("y", "y")], {"x"})
    assert memory.found([flat[::2], flat[1::2]]) == ("x", "y")


def test_a_number_stands_for_the_sizes_of_tensors_at_the_same_addresses() -> None:
    flat = torch.zeros(8)
    memory = SharedMemory([an_input("x", "x"), an_input("y", "y"), an_input("n", "n")], {"x"})
    assert memory.found([flat[:4], flat[4:], 4]) is None
    assert memory.found([flat[:5], flat[4:], 5]) == ("x", "y")


@given(st.data())
def test_what_is_found_does_not_depend_on_earlier_calls(data: st.DataObject) -> None:
    flat, names = torch.zeros(12), ["v0", "v1", "v2"]
    memory = SharedMemory([an_input(name, name) for name in (*names, "n")], {"v1"})
    for n in data.draw(st.lists(st.integers(0, 6), max_size=6)):
        values = [flat[start : start + n] for start in data.draw(st.permutations([0, 3, 6]))]
        separate = SharedMemory([an_input(name, name) for name in (*names, "n")], {"v1"})
        assert memory.found([*values, n]) == separate.found([*values, n])


def test_a_size_that_no_number_says_is_compared() -> None:
    flat = torch.zeros(8)
    inputs = [
        Input(name, TensorType(("s0",), (1,), torch.float32, CPU), (name,)) for name in ("x", "y")
    ]
    memory = SharedMemory(inputs, {"x"})
    assert memory.found([None, flat[4:]]) is None
    assert memory.found([flat[:4], flat[4:]]) is None
    assert memory.found([flat[:5], flat[4:]]) == ("x", "y")
    assert memory.found([flat[:3], flat[4:]]) is None
    assert memory.found([flat[:4:2], flat[4:]]) is None
    assert memory.found([flat[:8:4], flat[4:]]) == ("x", "y")


def test_fake_tensors_share_no_memory() -> None:
    memory = SharedMemory([an_input("x", "x"), an_input("y", "y")], {"x"})
    mode = FakeTensorMode()
    assert memory.found([mode.from_tensor(torch.zeros(4)) for _ in range(2)]) is None
