"""Synthetic values have their types, and operators accept them."""

import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nimble_fx.cost.synthetic import check_runs, random_rows, synthetic
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.task_graph import Ref, Task
from nimble_fx.ir.types import ScalarType, TensorType, TupleType
from nimble_fx.rewrites.kernel_registry import registered
from tests.support.cost_graphs import one_task, tensor_type, traced

STATM = Path("/proc/self/statm")


@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.float32, torch.float16, torch.complex64, torch.int64, torch.bool]),
    st.booleans(),
)
def test_values_have_their_types(shape: list[int], dtype: torch.dtype, is_transposed: bool) -> None:
    stride = tuple(torch.empty(shape[::-1] if is_transposed else shape).stride())
    stride = stride[::-1] if is_transposed else stride
    x = synthetic(TensorType(tuple(shape), stride, dtype, torch.device("cpu")))
    assert (x.shape, x.dtype) == (torch.Size(shape), dtype)
    assert not x.numel() or x.stride() == stride
    if not (dtype.is_floating_point or dtype.is_complex):
        assert not x.any()
    elif not x.is_complex() and len(shape) < 2:
        assert ((x >= 0.5) & (x <= 1.5)).all()


def test_values_are_conjugated_and_negated_lazily_where_their_types_are() -> None:
    kind = TensorType((3,), (1,), torch.complex64, torch.device("cpu"), is_conj=True)
    assert synthetic(kind).is_conj()
    assert synthetic(replace(kind, is_conj=False, is_neg=True)).is_neg()


def test_a_kernel_that_may_divide_integers_does_not_run_on_zeros() -> None:
    schema, identity = "(Tensor x, Tensor y) -> Tensor", ("test_synthetic",)
    division = registered("cpp_fused_div_0", identity, schema, torch.div, torch.add, "x / y")
    number = tensor_type(3)
    (task,) = one_task(division, number, number, number).tasks
    check_runs(task, [torch.ones(3), torch.ones(3, dtype=torch.bool)])
    with pytest.raises(UnsupportedError, match="may divide integers"):
        check_runs(task, [torch.ones(3), torch.ones(3, dtype=torch.int32)])


def test_an_expanded_value_takes_the_memory_of_one_row() -> None:
    x = synthetic(TensorType((1000, 3), (0, 1), torch.float32, torch.device("cpu")))
    assert x.untyped_storage().nbytes() == 12


@pytest.mark.parametrize("shape", [(300, 300), (40, 30, 3, 3), (1, 500), (500, 1)])
def test_a_product_with_a_made_up_weight_is_half_as_large_as_what_it_is_a_product_of(
    shape: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    weight = synthetic(tensor_type(*shape)).flatten(1)
    x = torch.randn(100, weight.shape[1])
    assert 0.4 < (x @ weight.T).std() < 0.65


def test_numbers_and_tuples_are_made_of_their_parts() -> None:
    x, n = synthetic(TupleType((tensor_type(2), ScalarType("5"))))
    assert (x.shape, n) == ((2,), 5)
    with pytest.raises(UnsupportedError):
        synthetic(TupleType((ScalarType("s0 + 1"),)))
    with pytest.raises(UnsupportedError, match="type of an argument is not known"):
        synthetic(None)


def embedding_bag(per_bag: int) -> tuple[Task, dict[str, Tensor]]:
    """The task, and made-up values of the table, indices and offsets that it is given."""
    graph = traced(
        nn.EmbeddingBag(1000, 2, mode="sum"),
        torch.arange(100 * per_bag) % 1000,
        torch.arange(100) * per_bag,
    )
    task = next(task for task in graph.launching if "embedding_bag" in str(task.target))
    types = graph.types
    return task, {name: synthetic(types[name]) for name in task.uses}


@pytest.mark.parametrize("per_bag", [1, 5])
def test_an_embedding_looks_up_rows_all_over_its_table(per_bag: int) -> None:
    task, values = embedding_bag(per_bag)
    indices, offsets = random_rows(task, values).values()
    assert torch.equal(offsets, torch.arange(100) * per_bag)
    assert 0 <= indices.min() < 200
    assert 800 < indices.max() < 1000
    assert not any(value.any() for value in list(values.values())[1:])  # as they were


def test_bags_that_are_computed_stay_as_they_are() -> None:
    task, values = embedding_bag(5)
    name = task.uses[2]
    values[name][50:] = 7
    assert set(random_rows(task, values)) == {task.uses[1]}


def looked_up(indices: Tensor, rows: int, *more: object) -> dict[str, Tensor]:
    """What becomes of indices into a table of so many rows."""
    args = (Ref("table"), Ref("indices"), *more)
    task = Task("task", torch.ops.aten.embedding.default, args)
    return random_rows(task, {"table": torch.zeros(rows, 2), "indices": indices, "pad": 3})


@pytest.mark.parametrize(
    "indices",
    [
        torch.zeros(1, 5, dtype=torch.int64).expand(4, 5),
        torch.zeros(4, 5, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int64),
    ],
    ids=["expanded", "short", "none"],
)
def test_whatever_indices_are_like_there_are_others(indices: Tensor) -> None:
    (found,) = looked_up(indices, 10, Ref("pad")).values()
    assert (found.shape, found.dtype) == (indices.shape, indices.dtype)
    assert ((found >= 0) & (found < 10)).all()


def test_in_an_empty_table_nothing_is_looked_up() -> None:
    assert looked_up(torch.zeros(0, dtype=torch.int64), 0) == {}


def test_another_task_keeps_its_values() -> None:
    graph = traced(nn.Linear(3, 4), torch.ones(2, 3))
    (task,) = graph.launching
    assert random_rows(task, {name: torch.zeros(3) for name in task.uses}) == {}


@pytest.mark.skipif(not STATM.exists(), reason="only Linux tells a process's memory there")
def test_of_a_part_of_much_memory_the_part_is_written() -> None:
    """Twelve numbers of a gigabyte take no time."""
    part = TensorType((3, 4), (1 << 27, 1), torch.float32, torch.device("cpu"))
    before = resident_nbytes()
    x = synthetic(part)
    assert x.abs().min() > 0
    assert x.untyped_storage().nbytes() > 1 << 30
    assert resident_nbytes() - before < 1 << 28


def resident_nbytes() -> int:
    """What this process has of the machine's memory."""
    pages = int(STATM.read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats_are_made_too(dtype: torch.dtype) -> None:
    x = synthetic(tensor_type(50, 4, dtype=dtype))
    assert x.dtype == dtype
    assert 0.1 < x.to(torch.float32).std() < 0.5
