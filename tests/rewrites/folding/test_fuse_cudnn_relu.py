"""cuDNN's convolutions fuse addition and relu, if nothing else reads the results between."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from nimble_fx.rewrites.folding.channels_last import channels_last
from nimble_fx.rewrites.folding.fuse_cudnn_relu import fuse_cudnn_relu
from nimble_fx.rewrites.folding.hoist_weights import fixed_nodes
from nimble_fx.torch_internals.kernels.cudnn import CONVOLUTION_ADD_RELU, CONVOLUTION_RELU
from tests.support.accuracy import assert_as_accurate
from tests.support.cudnn_on_cpu import cudnn_on_cpu
from tests.support.inference_graphs import inference_graph
from tests.support.promised_types import run_as_promised

X = torch.randn(2, 4, 6, 6)
OTHER = torch.randn(2, 6, 4, 4)
aten = torch.ops.aten
COPIES = {aten.clone.default, aten.transpose.int}


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with cudnn_on_cpu():
        yield


class Then(nn.Module):
    """A function of a convolution's result, and of another tensor of its shape."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Tensor, other: Tensor = OTHER) -> object:
        return self.function(self.layer(x), other)


def operators(model: nn.Module, *inputs: Tensor) -> list[object]:
    """The operators of the calls after the rewrite, without copies; it computes the same."""
    graph = inference_graph(model.eval(), *inputs)
    gm = channels_last(graph.gm, fixed_nodes(graph.gm, graph.static))
    fuse_cudnn_relu(gm, fixed_nodes(gm, graph.static))
    assert_as_accurate(model, inputs, run_as_promised(gm, *graph.arguments))
    targets = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    return [target for target in targets if target not in COPIES]


def layer(**options: Any) -> nn.Module:
    return nn.Conv2d(4, 6, **{"kernel_size": 3, **options})


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


FUSED: dict[str, tuple[Callable[[Tensor, Tensor], object], object]] = {
    "relu": (lambda y, _: torch.relu(y), CONVOLUTION_RELU),
    "relu in place": (lambda y, _: torch.relu_(y), CONVOLUTION_RELU),
    "added": (lambda y, z: torch.relu(y + z), CONVOLUTION_ADD_RELU),
    "added to": (
        lambda y, z: torch.relu(last(z) + y),
        CONVOLUTION_ADD_RELU,
    ),
    "added in place": (lambda y, z: torch.relu_(y.add_(z)), CONVOLUTION_ADD_RELU),
    "of other strides": (lambda y, z: torch.relu(y + z.transpose(2, 3)), CONVOLUTION_ADD_RELU),
}


@pytest.mark.parametrize(("function", "fused"), FUSED.values(), ids=FUSED)
def test_relu_is_fused(function: Callable[[Tensor, Tensor], object], fused: object) -> None:
    assert operators(Then(layer(), function), X, OTHER) == [fused]


BOUNDED = [nn.functional.relu6, lambda y: nn.functional.hardtanh(y, 0, 0.5)]


@pytest.mark.parametrize("function", BOUNDED)
def test_of_relu_with_a_bound_the_bound_is_left(function: Callable[[Tensor], Tensor]) -> None:
    bound = aten.clamp_max.default
    assert operators(Then(layer(), lambda y, _: function(y)), X) == [CONVOLUTION_RELU, bound]
    added = operators(Then(layer(), lambda y, z: function(y + z)), X, OTHER)
    assert added == [CONVOLUTION_ADD_RELU, bound]


WINDOWS: list[dict[str, Any]] = [
    {"padding": (2, 1), "stride": (1, 2)},
    {"stride": 2, "padding": 2, "dilation": (1, 2)},
    {"groups": 2},
    {"kernel_size": 1},
]


@pytest.mark.parametrize("window", WINDOWS)
def test_it_has_the_same_window(window: dict[str, Any]) -> None:
    model = Then(layer(**window), lambda y, _: torch.relu(y))
    assert operators(model, X) == [CONVOLUTION_RELU]


def test_a_window_of_one_number_is_of_both_dimensions() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 6, 3)

        def forward(self, x: Tensor) -> Tensor:
            weights = self.layer.weight, self.layer.bias
            return torch.convolution(x, *weights, [2], [1], [1], False, [0], 1).relu()

    assert operators(Convolution(), X) == [CONVOLUTION_RELU]
    graph = inference_graph(Convolution().eval(), X)
    gm = channels_last(graph.gm, fixed_nodes(graph.gm, graph.static))
    fuse_cudnn_relu(gm, fixed_nodes(gm, graph.static))
    (fused,) = gm.graph.find_nodes(op="call_function", target=CONVOLUTION_RELU)
    assert fused.args[3:6] == ([2, 2], [1, 1], [1, 1])  # it reads two of each


@pytest.mark.parametrize("strides", [(2,), (0,)])
def test_it_reads_a_bias_without_gaps(strides: tuple[int]) -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.bias = nn.Conv2d(4, 6, 3), nn.Parameter(torch.randn(12))

        def forward(self, x: Tensor) -> Tensor:
            bias = self.bias.as_strided((6,), strides)
            return torch.conv2d(x, self.layer.weight, bias).relu()

    graph = inference_graph(Biased().eval(), X)
    gm = channels_last(graph.gm, fixed_nodes(graph.gm, graph.static))
    fuse_cudnn_relu(gm, fixed_nodes(gm, graph.static))
    (fused,) = gm.graph.find_nodes(op="call_function", target=CONVOLUTION_RELU)
    assert cast(Node, fused.args[2]).meta["val"].is_contiguous()


def test_a_block_of_a_residual_network_is_two_kernels() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.two(torch.relu(self.one(x))) + x)

    assert operators(Block(), X) == [CONVOLUTION_RELU, CONVOLUTION_ADD_RELU]


LEFT_ALONE: dict[str, tuple[nn.Module, Callable[[Tensor, Tensor], object]]] = {
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), lambda y, _: torch.relu(y)),
    "no bias": (layer(bias=False), lambda y, _: torch.relu(y)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3), lambda y, _: torch.relu(y)),
    "transposed of its format": (
        nn.Sequential(layer(), nn.ConvTranspose2d(6, 6, 3)),
        lambda y, _: torch.relu(y),
    ),
    "one dimension": (nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 6, 3)), lambda y, _: y.relu()),
    "of doubles": (layer().double(), lambda y, _: torch.relu(y)),
    "another activation": (layer(), lambda y, _: torch.sigmoid(y)),
    "hardtanh below nothing": (layer(), lambda y, _: nn.functional.hardtanh(y)),
    "hardtanh above -0": (layer(), lambda y, _: nn.functional.hardtanh(y, -0.0, 2)),
    "read by others": (layer(), lambda y, _: torch.relu(y) + y),
    "returned": (layer(), lambda y, _: (torch.relu(y), y)),
    "added to itself": (layer(), lambda y, _: torch.relu(y + y)),
    "multiplied": (layer(), lambda y, z: torch.relu(torch.add(y, z, alpha=2))),
    "a row": (layer(), lambda y, z: torch.relu(y + z[:1, :, :1, :1])),
    "a sum that is read": (layer(), lambda y, z: (torch.relu(y + z), y + z)),
    "one pixel": (nn.Conv2d(4, 6, 6), lambda y, _: torch.relu(y)),
}


@pytest.mark.parametrize(("module", "function"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_others_are_left_alone(
    module: nn.Module, function: Callable[[Tensor, Tensor], object]
) -> None:
    x = X.double() if next(module.parameters()).dtype == torch.float64 else X
    found = operators(Then(module, function), x, OTHER)
    assert not {CONVOLUTION_RELU, CONVOLUTION_ADD_RELU} & set(found)


def test_so_are_large_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Then(layer(), lambda y, _: torch.relu(y))
    for most, fused in ((X.numel(), True), (X.numel() - 1, False)):
        monkeypatch.setattr("nimble_fx.rewrites.folding.fuse_cudnn_relu.MAX_ELEMENTS", most)
        assert (CONVOLUTION_RELU in operators(model, X)) == fused


def test_so_are_filters_that_the_caller_passes_and_convolutions_of_weights_alone() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.layer = nn.Parameter(last(X)), nn.Conv2d(4, 6, 3)

        def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            passed = torch.conv2d(last(x), weight, self.layer.bias).relu()
            return passed, self.layer(self.image).relu() + x.mean()

    assert CONVOLUTION_RELU not in operators(Functional(), X, last(torch.randn(6, 4, 3, 3)))


def test_so_are_sizes_that_are_not_known() -> None:
    model, x = Then(layer(), lambda y, _: torch.relu(y)).eval(), X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    graph = inference_graph(model, x)
    gm = channels_last(graph.gm, fixed_nodes(graph.gm, graph.static))
    fuse_cudnn_relu(gm, fixed_nodes(gm, graph.static))
    assert CONVOLUTION_RELU not in [node.target for node in gm.graph.nodes]


def test_so_are_all_where_results_must_be_deterministic() -> None:
    model = Then(layer(), lambda y, _: torch.relu(y))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        assert CONVOLUTION_RELU not in operators(model, X)
    torch.use_deterministic_algorithms(True)
    try:
        assert CONVOLUTION_RELU not in operators(model, X)
    finally:
        torch.use_deterministic_algorithms(False)
