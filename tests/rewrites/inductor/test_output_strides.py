"""Outputs have the strides that they were traced with, also where these locate no element."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.rewrites.inductor.output_strides import restride_outputs
from tests.support.bits import assert_same_bits

ANY = st.integers(1, 9)
LAYOUTS = {  # strides of equal tensors
    (1, 2, 1, 3): st.tuples(ANY, st.just(3), ANY, st.just(1)),
    (4, 0, 2): st.tuples(ANY, ANY, ANY),
}


@st.composite
def equal_layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A shape, and two choices of strides that locate the same elements."""
    shape = draw(st.sampled_from(sorted(LAYOUTS)))
    return shape, draw(st.lists(LAYOUTS[shape], min_size=2, max_size=2))


@given(st.lists(equal_layouts(), min_size=1, max_size=3))
def test_outputs_get_the_strides_of_another_graph(
    layouts: list[tuple[tuple[int, ...], list[tuple[int, ...]]]],
) -> None:
    x = torch.randn(24)

    def outputs(which: int) -> Callable[[Tensor], list[Any]]:
        return lambda x: [
            *(torch.as_strided(x.sin(), shape, strides[which]) for shape, strides in layouts),
            *(x, 1, True),
        ]

    one, other = (make_fx(outputs(i), tracing_mode="fake")(x) for i in range(2))
    restride_outputs(one.graph, other.graph)
    other.graph.lint()
    expected, found = one(x), GraphModule(other, other.graph)(x)
    assert [*map(type, found[-2:])] == [int, bool]
    assert found[-3] is x
    assert_same_bits(found[:-2], expected[:-2])
    assert [y.stride() for y in found[:-2]] == [y.stride() for y in expected[:-2]]


def test_outputs_that_differ_in_more_are_left_alone() -> None:
    x = torch.randn(2, 3)
    one = make_fx(lambda x: [x.sin(), x.sin()[:1], x], tracing_mode="fake")(x)
    other = make_fx(lambda x: [x.t().contiguous().t(), x.cos(), x], tracing_mode="fake")(x)
    assert one.graph.output_node().args[0][0].meta["val"].stride() == (3, 1)  # type: ignore
    assert other.graph.output_node().args[0][0].meta["val"].stride() == (1, 2)  # type: ignore
    nodes = list(other.graph.nodes)
    restride_outputs(one.graph, other.graph)
    assert list(other.graph.nodes) == nodes


def cache(x: Tensor) -> Tensor:
    return torch.cat([torch.relu(x).view(-1, 1, 4, 8).transpose(1, 2)], 2)


def batch(x: Tensor) -> Tensor:
    return (x * 2).view(-1, 16, 2)[..., 0]


@pytest.mark.parametrize(("function", "shape"), [(cache, (1, 1, 32)), (batch, (0, 32))])
def test_one_token_and_an_empty_batch_are_made_by_inductors_kernels(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"kernels": "inductor", "on_fallback": "error"}
    x = torch.randn(shape)
    with torch.no_grad():
        found = torch.compile(function, backend="nimble", options=options)(x)
    assert_same_bits(found, function(x))
    assert found.stride() == function(x).stride()
