"""Rewritten graphs compute the same, with the same shapes and strides."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from nimble_fx.rewrites.folding.fold_weights import Library, fold_weights
from nimble_fx.rewrites.folding.hoist_weights import Hoisted
from tests.strategies.image_networks import ImageNetwork, image_networks
from tests.support.accuracy import assert_as_accurate
from tests.support.cudnn_on_cpu import cudnn_on_cpu
from tests.support.inference_graphs import inference_graph


def run(parts: Hoisted, arguments: list[Any]) -> Any:
    """What the two parts compute, one after the other."""
    weights = parts.weights(*[arguments[i] for i in parts.sources])
    return parts.main(*[arguments[i] for i in parts.kept], *weights)


class WritesItsStatistics(nn.Module):
    """Normalizes by a mean that it then changes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.convolution(x))
        assert self.norm.running_mean is not None
        self.norm.running_mean.add_(1)
        return result


def test_a_normalization_by_what_the_model_writes_is_left_alone() -> None:
    graph = inference_graph(WritesItsStatistics().eval(), torch.randn(1, 2, 3, 3))
    parts = fold_weights(graph.gm, graph.static, library="oneDNN")
    assert parts is not None  # the format of the weight
    assert any("batch_norm" in str(node.target) for node in parts.main.graph.nodes)


class OfWeights(nn.Module):
    """Layers of numbers that the model has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, 512))
        self.image = nn.Parameter(torch.randn(1, 4, 6, 6))
        self.linear, self.convolution = nn.Linear(512, 512), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.queries) + x, torch.sigmoid(self.convolution(self.image)) * x.sum()


def test_layers_of_weights_alone_are_computed_once() -> None:
    model, x = OfWeights().eval(), torch.randn(512)
    graph = inference_graph(model, x)
    parts = fold_weights(graph.gm, graph.static, library="oneDNN")
    assert parts is not None
    calls = [node for node in parts.main.graph.nodes if node.op == "call_function"]
    assert not any("linear" in str(n.target) or "convolution" in str(n.target) for n in calls)
    with torch.no_grad():
        assert_as_accurate(model, (x,), run(parts, graph.arguments))


@pytest.fixture(params=["oneDNN", "cuDNN", None])
def library(request: pytest.FixtureRequest) -> Iterator[Library | None]:
    with cudnn_on_cpu():
        yield request.param


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(image_networks())
def test_parts_compute_what_the_network_does(
    library: Library | None, drawn: tuple[ImageNetwork, Tensor]
) -> None:
    model, x = drawn
    graph = inference_graph(model, x)
    parts = fold_weights(graph.gm, graph.static, library)
    if parts is not None:
        with torch.no_grad():
            assert_as_accurate(model, (x,), run(parts, graph.arguments))
