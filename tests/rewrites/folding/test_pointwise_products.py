"""Small pointwise convolutions become matrix products, and return the same values."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from nimble_fx.rewrites.folding.channels_last import channels_last
from nimble_fx.rewrites.folding.hoist_weights import fixed_nodes
from nimble_fx.rewrites.folding.pointwise_products import (
    MAX_ELEMENTS,
    MAX_FLOPS,
    MIN_CHANNELS,
    pointwise_products,
)
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import InferenceGraph, inference_graph

CHANNELS_LAST = torch.channels_last
aten = torch.ops.aten


def rewritten(model: nn.Module, *inputs: Tensor, assume_finite: bool = False) -> InferenceGraph:
    """A model's graph after the rewrite, which computes the same in the same strides."""
    graph = inference_graph(model.eval(), *inputs)
    with torch.no_grad():
        before = graph.gm(*graph.arguments)
    graph.gm = channels_last(graph.gm, fixed_nodes(graph.gm, graph.static))
    pointwise_products(graph.gm, fixed_nodes(graph.gm, graph.static), assume_finite)
    graph.gm.graph.lint()
    with torch.no_grad():
        after = graph.gm(*graph.arguments)
        assert_as_accurate(model, inputs, after)
    assert [each.stride() for each in after] == [each.stride() for each in before]
    return graph


def n_calls(graph: InferenceGraph, target: Any) -> int:
    return len(graph.gm.graph.find_nodes(op="call_function", target=target))


def is_left_alone(model: nn.Module, *inputs: Tensor, **options: bool) -> bool:
    graph = rewritten(model, *inputs, **options)
    return n_calls(graph, aten.linear.default) == 0 < n_calls(graph, aten.convolution.default)


def after_another(layer: nn.Module, *others: nn.Module) -> nn.Sequential:
    """The layer after one that is in the channels-last format."""
    kind: Any = type(layer)
    n: Any = layer.in_channels
    return nn.Sequential(kind(n, n, 3, padding=1).to(layer.weight), layer, *others)


sizes = partial(st.integers, MIN_CHANNELS)


@given(sizes(20), sizes(20), st.integers(1, 3), st.integers(1, 5), st.booleans(), st.booleans())
def test_any_small_one_is_a_product(
    n_in: int, n_out: int, n_images: int, height: int, has_bias: bool, is_last: bool
) -> None:
    layer = nn.Conv2d(n_in, n_out, 1, bias=has_bias)
    if is_last:
        layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    graph = rewritten(after_another(layer), torch.randn(n_images, n_in, height, 4))
    assert n_calls(graph, aten.linear.default) == 1
    assert n_calls(graph, aten.convolution.default) == 1


class Twice(nn.Module):
    """Applies a layer to two images, one of which is a part of a larger one."""

    def __init__(self) -> None:
        super().__init__()
        n = MIN_CHANNELS
        self.stem, self.layer = nn.Conv2d(3, n, 1), nn.Conv2d(n, n, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(self.stem(x))
        return self.layer(y[:, :, 1:, 1:]) + y[:, :, 1:, 1:], y


def test_a_weight_may_be_read_twice_and_a_result_be_cut() -> None:
    graph = rewritten(Twice(), torch.randn(2, 3, 4, 4))
    assert n_calls(graph, aten.linear.default) == 1  # what is cut has gaps


N = MIN_CHANNELS
OTHERS: dict[str, Any] = {
    "a window": (nn.Conv2d(N, N, 3), (1, N, 5, 5)),
    "a stride": (nn.Conv2d(N, N, 1, stride=2), (1, N, 5, 5)),
    "padding": (nn.Conv2d(N, N, 1, padding=1), (1, N, 5, 5)),
    "groups": (nn.Conv2d(2 * N, 2 * N, 1, groups=2), (1, 2 * N, 5, 5)),
    "a narrow image": (nn.Conv2d(N - 1, N, 1), (1, N - 1, 5, 5)),
    "a narrow result": (nn.Conv2d(N, N - 1, 1), (1, N, 5, 5)),
    "a large result": (nn.Conv2d(N, N, 1), (1, N, MAX_ELEMENTS // N // 64 + 1, 64)),
    "many operations": (nn.Conv2d(1024, 512, 1), (1, 1024, MAX_FLOPS // 2**20 + 1, 1)),
    "one dimension": (nn.Conv1d(N, N, 1), (1, N, 5)),
    "three dimensions": (nn.Conv3d(N, N, 1), (1, N, 2, 3, 4)),
    "float64": (nn.Conv2d(N, N, 1).double(), (1, N, 5, 5)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_alone(name: str) -> None:
    layer, shape = OTHERS[name]
    assert is_left_alone(after_another(layer), torch.randn(shape, dtype=layer.weight.dtype))


def test_one_in_the_default_format_is_left_alone() -> None:
    assert is_left_alone(nn.Conv2d(N, N, 1), torch.randn(1, N, 5, 5))


def test_one_of_a_computed_weight_is_left_alone() -> None:
    class OfItsInput(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return functional.conv2d(x, weight)

    assert is_left_alone(OfItsInput(), torch.randn(1, N, 3, 3), torch.randn(N, N, 1, 1))


def test_one_of_weights_alone_is_left_alone_as_it_is_computed_once() -> None:
    class OfWeights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.randn(1, N, 3, 3).to(memory_format=CHANNELS_LAST))
            self.layer = nn.Conv2d(N, N, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.layer(self.image)

    assert is_left_alone(OfWeights(), torch.randn(1, N, 3, 3))


@pytest.mark.parametrize(
    ("activation", "assume_finite", "is_fused"),
    [
        (nn.Sigmoid(), False, True),
        (nn.SiLU(), False, True),
        (nn.ReLU(), True, True),
        (nn.ReLU(), False, False),
        (nn.ELU(), True, False),
    ],
    ids=str,
)
def test_one_whose_activation_the_library_applies_is_left_alone(
    activation: nn.Module, assume_finite: bool, is_fused: bool
) -> None:
    model, x = after_another(nn.Conv2d(N, N, 1), activation), torch.randn(1, N, 5, 5)
    assert is_left_alone(model, x, assume_finite=assume_finite) == is_fused
