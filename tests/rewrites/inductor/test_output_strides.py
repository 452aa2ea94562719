"""Outputs have the strides that they were traced with, also in dimensions of size 1."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.rewrites.inductor.output_strides import restride_outputs
from tests.support.bits import assert_same_bits


def strided(x: Tensor, stride: list[int]) -> Tensor:
    return torch.as_strided(x.sin(), (1, 2, 1, 3), stride)


STRIDES = st.tuples(*[st.integers(1, 9), st.just(3), st.integers(1, 9), st.just(1)]).map(list)


@given(st.lists(st.tuples(STRIDES, STRIDES), min_size=1, max_size=3))
def test_outputs_get_the_strides_of_another_graph(pairs: list[tuple[list[int], list[int]]]) -> None:
    x = torch.randn(24)

    def outputs(which: int) -> Callable[[Tensor], list[Any]]:
        return lambda x: [*(strided(x, pair[which]) for pair in pairs), x, 1, True]

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


def test_a_cache_of_one_token_is_made_by_inductors_kernels() -> None:
    def cache(x: Tensor) -> Tensor:
        return torch.cat([torch.relu(x).view(1, 1, 4, 8).transpose(1, 2)], 2)

    options: dict[str, Any] = {"kernels": "inductor", "on_fallback": "error"}
    x = torch.randn(1, 1, 32)
    with torch.no_grad():
        found = torch.compile(cache, backend="nimble", options=options)(x)
    assert_same_bits(found, cache(x))
    assert found.stride() == cache(x).stride()
