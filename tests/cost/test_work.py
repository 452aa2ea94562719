"""Operations equal PyTorch's own count of a real run; bytes are counted by hand."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nimble_fx.cost.work import Work, work_of
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import concrete
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import TupleType
from nimble_fx.torch_internals.kernels.onednn import LINEAR
from tests.support.cost_graphs import aten, one_task, tensor_type, traced


def works(graph: TaskGraph, **sizes: int) -> list[Work]:
    types = concrete(graph, sizes).types
    return [work_of(task, types) for task in concrete(graph, sizes).launching]


def counted(model: nn.Module, *inputs: Tensor) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    return counter.get_total_flops()


@given(
    groups=st.sampled_from([1, 2, 4]),
    channels=st.integers(1, 3),
    size=st.integers(3, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    transposed=st.booleans(),
)
@settings(max_examples=15)
def test_a_convolutions_operations_are_those_that_pytorch_counts(
    groups: int, channels: int, size: int, kernel: int, stride: int, transposed: bool
) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = kind(4 * channels, 4, kernel, stride, groups=groups)
    x = torch.randn(2, 4 * channels, size, size)
    (work,) = works(traced(model, x))
    assert work.flops == counted(model, x)
    assert work.is_product
    assert work.is_convolution
    assert work.n_channels == 4 * channels // groups
    assert work.is_depthwise == (groups == 4 * channels)


@pytest.mark.parametrize(
    ("model", "n_channels", "is_depthwise"),
    [
        (nn.Conv2d(1, 4, 3), 1, False),
        (nn.Conv2d(4, 4, 3, groups=4), 1, True),
        (nn.ConvTranspose2d(4, 1, 3), 4, False),
        (nn.ConvTranspose2d(1, 4, 3), 1, False),
        (nn.ConvTranspose2d(4, 8, 3, groups=4), 1, True),
    ],
    ids=str,
)
def test_a_convolution_of_one_channel_is_depthwise_only_in_several_groups(
    model: nn.Module, n_channels: int, is_depthwise: bool
) -> None:
    n_in: Any = model.in_channels
    (work,) = works(traced(model, torch.randn(2, n_in, 5, 5)))
    assert (work.n_channels, work.is_depthwise) == (n_channels, is_depthwise)


LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize(
    ("image", "weight", "size", "n"),
    [
        (FIRST, FIRST, 3, 2),
        (LAST, FIRST, 3, 1),
        (FIRST, LAST, 3, 1),
        (LAST, LAST, 3, 0),
        (FIRST, FIRST, 1, 2),  # of a size at which both formats are one
        (LAST, FIRST, 1, 0),
    ],
)
def test_a_convolutions_operands_that_are_not_channels_last_are_converted(
    image: torch.memory_format, weight: torch.memory_format, size: int, n: int
) -> None:
    model = nn.Conv2d(4, 8, size)
    model.weight.data = model.weight.data.to(memory_format=weight)
    x = torch.randn(2, 4, 5, 5).to(memory_format=image)
    (work,) = works(traced(model, x))
    assert work.n_conversions == n


def test_a_convolution_of_one_dimension_has_no_channels_last_format() -> None:
    (work,) = works(traced(nn.Conv1d(4, 8, 3), torch.randn(2, 4, 5)))
    assert work.n_conversions == 2


def test_a_networks_operations_are_those_that_pytorch_counts() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))
    x = torch.randn(3, 8)
    products = [work for work in works(traced(model, x)) if work.is_product]
    assert sum(work.flops for work in products) == counted(model, x) == 2 * 3 * (8 * 16 + 16 * 4)
    assert not any(work.is_convolution for work in products)


@pytest.mark.parametrize("rows", [(3,), (2, 3), ()])
def test_a_product_by_a_packed_weight_counts_as_the_layer_that_it_is(rows: tuple[int, ...]) -> None:
    layer, x = nn.Linear(8, 16), torch.randn(*rows, 8)

    def packed(x: Tensor) -> Tensor:
        return LINEAR(x, layer.weight, layer.bias, "none", [], None)

    (work,) = works(traced(packed, x))
    assert work.flops == counted(layer, x)
    assert work.is_product
    assert not work.is_convolution


def test_a_linear_that_is_not_decomposed_is_a_matrix_product() -> None:
    made, rows, matrix, bias = (tensor_type(*n) for n in ((2, 3, 16), (2, 3, 8), (16, 8), (16,)))
    (work,) = works(one_task(aten.linear.default, made, rows, matrix, bias))
    assert work.flops == counted(nn.Linear(8, 16), torch.randn(2, 3, 8))
    assert work.is_product


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_product_with_a_wider_result_computes_in_the_type_of_its_factors(
    dtype: torch.dtype,
) -> None:
    made, bias = tensor_type(4, 6), tensor_type(6)
    left, right = tensor_type(4, 5, dtype=dtype), tensor_type(5, 6, dtype=dtype)
    for graph in (
        one_task(aten.mm.dtype, made, left, right, torch.float32),
        one_task(aten.addmm.dtype, made, bias, left, right, torch.float32),
    ):
        (work,) = works(graph)
        assert (work.flops, work.dtype, work.is_product) == (2 * 4 * 5 * 6, dtype, True)


def test_attention_is_two_matrix_products_on_a_cpu_too() -> None:
    q = torch.randn(2, 3, 5, 8)
    (work,) = works(traced(nn.functional.scaled_dot_product_attention, q, q, q))
    assert work.flops == 2 * (2 * 2 * 3 * 5 * 5 * 8)


def test_each_tensor_is_moved_once_with_its_own_element_size() -> None:
    half = tensor_type(4, 5, dtype=torch.float16)
    (work,) = works(one_task(aten.add.Tensor, tensor_type(4, 5), half, tensor_type(5)))
    assert work.nbytes == 20 * 4 + 20 * 2 + 5 * 4
    assert (work.flops, work.n_elements, work.dtype) == (20, 20, torch.float32)
    assert not work.is_product


def test_a_reduction_does_one_operation_for_each_element_that_it_reads() -> None:
    (work,) = works(one_task(aten.sum.default, tensor_type(), tensor_type(100)))
    assert (work.flops, work.n_elements, work.nbytes) == (100, 1, 404)


@pytest.mark.parametrize(("n_indices", "n_read"), [(3, 3 * 8), (2000, 1000 * 8)])
def test_a_look_up_reads_the_rows_that_it_is_asked_for(n_indices: int, n_read: int) -> None:
    table, indices = tensor_type(1000, 8), tensor_type(n_indices, dtype=torch.int64)
    (work,) = works(one_task(aten.embedding.default, tensor_type(n_indices, 8), table, indices))
    assert work.nbytes == 4 * n_read + 8 * n_indices + 4 * 8 * n_indices


def test_all_results_of_an_operator_are_written() -> None:
    x = tensor_type(6)
    made = TupleType((x, tensor_type(6, dtype=torch.int64), None))
    (work,) = works(one_task(aten.sort.default, made, x))
    assert work.nbytes == 6 * 4 + 6 * 4 + 6 * 8


def test_symbolic_sizes_are_what_they_are_taken_for() -> None:
    graph = one_task(
        aten.mm.default, tensor_type("s0*2", 4), tensor_type("s0*2", 3), tensor_type(3, 4)
    )
    (work,) = works(graph, s0=5)
    assert work.flops == 2 * 10 * 3 * 4
    with pytest.raises(UnsupportedError, match=r"the size s0\*2 is not known.*s0 has no value"):
        works(graph)
    with pytest.raises(UnsupportedError):
        works(graph, s1=5)
