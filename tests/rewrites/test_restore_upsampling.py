"""Upsampling runs as eager's operator, and other reads by indices stay what they are."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import interpolate

from nimble_fx.rewrites.restore_upsampling import restore_upsampling
from nimble_fx.tracing.constant_folding import fold_constants
from tests.support.inference_graphs import inference_graph

aten = torch.ops.aten

UPSAMPLE = [
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
]


class Model(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def targets(function: Callable[..., Any], *inputs: Tensor) -> set[Any]:
    """The operators that the rewrite leaves, after a comparison with eager."""
    model = Model(function)
    graph = inference_graph(model, *inputs)
    gm = restore_upsampling(fold_constants(graph.gm, lambda device: device))
    gm.graph.lint()
    (result,), expected = gm(*graph.arguments), model(*inputs)
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride()
    assert all(node.users for node in gm.graph.find_nodes(op="get_attr"))
    return {node.target for node in gm.graph.nodes if node.op == "call_function"}


sizes = st.integers(1, 6)


@settings(deadline=None)
@given(
    st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.booleans(),
)
def test_upsampling_of_any_size_is_one_operator(
    drawn: list[tuple[int, int]], dtype: torch.dtype, channels_last: bool
) -> None:
    before, after = zip(*drawn, strict=True)
    x = torch.randn(2, 3, *before).to(dtype)
    if channels_last and len(drawn) == 2:
        x = x.contiguous(memory_format=torch.channels_last)
    found = targets(partial(interpolate, size=after, mode="nearest"), x)
    assert UPSAMPLE[len(drawn) - 1] in found
    assert aten._unsafe_index.Tensor not in found


@pytest.mark.parametrize("scale", [2, 3.0, 0.5, 1.7])
def test_upsampling_by_a_factor(scale: float) -> None:
    function = partial(interpolate, scale_factor=scale, mode="nearest")
    targets(function, torch.randn(1, 2, 5, 4))


def test_other_reads_by_indices_stay() -> None:
    def exact(x: Tensor) -> Tensor:
        return interpolate(x, size=(7, 5), mode="nearest-exact")

    def of_columns(x: Tensor) -> Tensor:
        return aten._unsafe_index.Tensor(x, [None, None, None, torch.tensor([0, 0, 1, 1])])

    def of_channels(x: Tensor) -> Tensor:
        rows, columns = torch.tensor([[0], [0], [1], [1]]), torch.tensor([0, 0, 1, 1])
        return aten._unsafe_index.Tensor(x, [None, rows, None, columns])

    def as_a_diagonal(x: Tensor) -> Tensor:
        return aten._unsafe_index.Tensor(x, [None, None, torch.arange(2), torch.arange(2)])

    def of_integers(x: Tensor) -> Tensor:
        rows, columns = torch.tensor([[0], [0], [1], [1]]), torch.tensor([0, 0, 1, 1])
        return aten._unsafe_index.Tensor(x.long(), [None, None, rows, columns])

    def of_one_row(x: Tensor) -> Tensor:
        return aten._unsafe_index.Tensor(x, [None, None, torch.tensor(1), torch.tensor([0, 1])])

    def of_no_row(x: Tensor) -> Tensor:
        return aten._unsafe_index.Tensor(x, [None, None, torch.zeros(0, 1).long(), torch.arange(2)])

    x = torch.randn(1, 2, 2, 2)
    for function, image in [
        (exact, torch.randn(1, 2, 4, 4)),
        (of_columns, x),
        (of_channels, x),
        (as_a_diagonal, x),
        (of_integers, x),
        (of_one_row, x),
        (of_no_row, x),
    ]:
        assert aten._unsafe_index.Tensor in targets(function, image)


def test_indices_of_a_call_are_not_known() -> None:
    def read(x: Tensor, rows: Tensor) -> Tensor:
        return aten._unsafe_index.Tensor(x, [None, None, rows[:, None], torch.tensor([0, 0, 1, 1])])

    rows = torch.tensor([0, 0, 1, 1])
    assert aten._unsafe_index.Tensor in targets(read, torch.randn(1, 2, 2, 2), rows)
