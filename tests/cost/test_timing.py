"""Tasks are called on values of their types, copies of which are as cold as they would be."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from nimble_fx.cost.timing import (
    MAX_COLD_NBYTES,
    MAX_COPIES,
    WARM_NBYTES,
    cold_values,
    synthetic,
    task_seconds,
    undisturbed,
)
from nimble_fx.cost.work import value_types
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir import Input, Ref, ScalarType, Task, TaskGraph, TensorType, TupleType
from nimble_fx.sizes import concrete
from tests.cost.graphs import aten, one_task, tensor_type, traced


class Noting(Cpu):
    """A CPU that notes what it is given to time."""

    def __init__(self) -> None:
        self.calls: Sequence[Any] = ()
        self.results: list[Any] = []

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        self.calls, self.results = calls, [call() for call in calls]
        return 1.0


@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.float32, torch.float16, torch.complex64, torch.int64, torch.bool]),
    st.booleans(),
)
def test_values_have_their_types(shape: list[int], dtype: torch.dtype, is_transposed: bool) -> None:
    stride = tuple(torch.empty(shape[::-1] if is_transposed else shape).stride())
    stride = stride[::-1] if is_transposed else stride
    of = TensorType(tuple(shape), stride, dtype, torch.device("cpu"))
    graph = one_task(aten.alias.default, of, of)
    x = synthetic(graph.tasks[0], value_types(graph))["x0"]
    assert (x.shape, x.dtype) == (torch.Size(shape), dtype)
    assert not x.numel() or x.stride() == stride
    if not (dtype.is_floating_point or dtype.is_complex):
        assert not x.any()


def test_an_expanded_value_takes_the_memory_of_one_row() -> None:
    of = TensorType((1000, 3), (0, 1), torch.float32, torch.device("cpu"))
    graph = one_task(aten.alias.default, of, of)
    x = synthetic(graph.tasks[0], value_types(graph))["x0"]
    assert x.untyped_storage().nbytes() == 12


def test_numbers_and_tuples_are_made_of_their_parts() -> None:
    parts = TupleType((tensor_type(2), ScalarType("s0 + 1")))
    inputs = (Input("pair", parts, ("pair",)),)
    task = Task("task", aten.alias.default, (Ref("pair"),))
    graph = TaskGraph("g", inputs, (), (task,), ())
    x, n = synthetic(task, value_types(concrete(graph, {"s0": 4})))["pair"]
    assert (x.shape, n) == ((2,), 5)
    with pytest.raises(UnsupportedError):
        synthetic(task, value_types(graph))
    with pytest.raises(UnsupportedError, match="nothing is known"):
        synthetic(task, {"pair": None})


@pytest.mark.parametrize("per_bag", [1, 5])
def test_an_embedding_looks_up_rows_all_over_its_table(per_bag: int) -> None:
    graph = traced(
        nn.EmbeddingBag(1000, 2, mode="sum"),
        torch.arange(100 * per_bag) % 1000,
        torch.arange(100) * per_bag,
    )
    task = next(task for task in graph.launching if "embedding_bag" in str(task.target))
    values = synthetic(task, value_types(graph))
    _, indices, offsets = (values[arg.name] for arg in task.args[:3])
    assert torch.equal(offsets, torch.arange(100) * per_bag)
    assert 0 <= indices.min() < 200
    assert 800 < indices.max() < 1000


def test_each_timed_call_of_an_embedding_looks_up_other_rows() -> None:
    """The same rows again would be warm, whatever the table."""
    graph = traced(nn.Embedding(1 << 20, 1), torch.arange(50))
    (task,) = graph.launching
    values, device = synthetic(task, value_types(graph)), Noting()
    task_seconds(task, values, cold_values(graph), device)
    rows = [set(indices.tolist()) for _, indices, *_ in (call.args for call in device.calls)]
    assert len(rows) == MAX_COPIES
    assert max(len(one & other) for one, other in pairwise(rows)) <= 2


def test_parameters_and_their_views_are_cold_and_nothing_else() -> None:
    graph = traced(nn.Sequential(nn.Linear(300, 100), nn.ReLU()), torch.randn(4, 300))
    cold = cold_values(graph)
    static = {value.name for value in graph.inputs if value.static}
    views = {task.name for task in graph.tasks if not task.launches}
    assert static
    assert views
    assert set(cold) == static | views
    assert set(cold.values()) == {1 << 17}  # 30,100 numbers of 4 bytes, rounded up


def test_no_cache_is_larger_than_what_is_read_between_two_reads() -> None:
    huge = tensor_type(1 << 20, 1 << 10)
    cold = cold_values(one_task(aten.relu.default, huge, huge, static=0))
    assert cold == {"x0": MAX_COLD_NBYTES}


@pytest.mark.parametrize(
    ("nbytes", "cold", "n_copies"),
    [
        (WARM_NBYTES // 4, None, 4),
        (WARM_NBYTES * 4, None, 1),
        (4, None, MAX_COPIES),
        (WARM_NBYTES, 8 * WARM_NBYTES, 8),
        (WARM_NBYTES, WARM_NBYTES // 2, 1),
    ],
)
def test_calls_go_round_as_many_copies_as_caches_hold(
    nbytes: int, cold: int | None, n_copies: int
) -> None:
    graph, device = one_task(aten.alias.default, None, tensor_type(1)), Noting()
    values = {"x0": torch.zeros(nbytes, dtype=torch.uint8)}
    seconds = task_seconds(graph.tasks[0], values, {} if cold is None else {"x0": cold}, device)
    assert seconds == 1.0
    assert len({x.data_ptr() for x in device.results}) == len(device.results) == n_copies


def test_a_small_argument_does_not_make_copies_of_a_large_parameter() -> None:
    """64 copies of a weight would be colder than it is in the model, and take as much memory."""
    graph, device = one_task(aten.add.Tensor, None, tensor_type(1), tensor_type(1)), Noting()
    values = {"x0": torch.zeros(1000), "x1": torch.zeros(1)}
    task_seconds(graph.tasks[0], values, {"x0": 12_000}, device)
    called = [call.args for call in device.calls]
    assert len(called) == 66  # whole rounds of the three
    assert len({weight.data_ptr() for weight, _ in called}) == 3
    assert len({x.data_ptr() for _, x in called}) == MAX_COPIES


@given(st.integers(1, 2**40))
def test_the_bytes_between_two_reads_are_known_to_a_quarter(n: int) -> None:
    """So that models of nearly one size share times, and none is taken to miss a cache it fits."""
    (nbytes,) = cold_values(one_task(aten.relu.default, None, tensor_type(n), static=0)).values()
    total = min(4 * n, MAX_COLD_NBYTES)
    assert total <= nbytes <= total * 5 / 4
    assert bin(nbytes).count("1") <= 3 or nbytes == MAX_COLD_NBYTES


def test_what_a_task_writes_is_no_value_of_the_callers() -> None:
    graph, device = one_task(aten.add_.Tensor, None, tensor_type(3), tensor_type(3)), Cpu()
    values = {"x0": torch.ones(3), "x1": torch.ones(3)}
    assert task_seconds(graph.tasks[0], values, {}, device) > 0
    assert torch.equal(values["x0"], torch.ones(3))


def test_what_is_written_over_and_over_does_not_become_ever_smaller() -> None:
    graph, device = one_task(aten.mul_.Tensor, None, tensor_type(3), tensor_type(3)), Noting()
    task_seconds(graph.tasks[0], {"x0": torch.ones(3), "x1": torch.full((3,), 0.5)}, {}, device)
    assert not torch.stack(device.results).any()


def test_what_an_operator_raises_is_raised() -> None:
    graph = one_task(aten.mm.default, None, tensor_type(3, 4), tensor_type(3, 4))
    values = synthetic(graph.tasks[0], value_types(graph))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        task_seconds(graph.tasks[0], values, {}, Cpu())


def test_within_draws_are_undone_modes_are_off_and_nothing_is_differentiated() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    weight = nn.Parameter(torch.ones(1))
    with FakeTensorMode(), undisturbed(torch.device("cpu")):
        drawn: Tensor = torch.rand(1) + weight
        assert type(drawn) is Tensor
        assert not drawn.requires_grad
    assert torch.equal(torch.rand(1), expected)
