"""oneDNN's convolutions fuse the next operators, if nothing else reads the results between."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nimble_fx.rewrites.folding.channels_last import channels_last
from nimble_fx.rewrites.folding.fuse_activations import fuse_activations
from nimble_fx.rewrites.folding.hoist_weights import fixed_nodes
from nimble_fx.torch_internals.kernels.onednn import CONVOLUTION, CONVOLUTION_ADD
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import InferenceGraph, inference_graph

X = torch.randn(2, 4, 6, 6)
OTHER = torch.randn(2, 6, 4, 4)
aten = torch.ops.aten


class Then(nn.Module):
    """A function of a convolution's result, and of another tensor of its shape."""

    def __init__(self, layer: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Tensor, other: Tensor = OTHER) -> Tensor:
        return self.function(self.layer(x), other).contiguous()


def channels_last_graph(model: nn.Module, *inputs: Tensor) -> InferenceGraph:
    """A model's graph before the rewrite, with its convolutions in the format that it needs."""
    graph = inference_graph(model.eval(), *inputs)
    graph.gm = channels_last(graph.gm, fixed_nodes(graph.gm, graph.static))
    return graph


def rewritten(model: nn.Module, *inputs: Tensor, assume_finite: bool = False) -> InferenceGraph:
    """A model's graph after the rewrite."""
    graph = channels_last_graph(model, *inputs)
    fuse_activations(graph.gm, fixed_nodes(graph.gm, graph.static), assume_finite)
    graph.gm.graph.lint()
    return graph


def operators(model: nn.Module, *inputs: Tensor, assume_finite: bool = False) -> list[object]:
    """The operators after the rewrite, without copies and views; it computes the same."""
    graph = rewritten(model, *inputs, assume_finite=assume_finite)
    with torch.no_grad():
        assert_as_accurate(model, inputs, graph.gm(*graph.arguments))
    targets = [node.target for node in graph.gm.graph.nodes if node.op == "call_function"]
    return [target for target in targets if target is not aten.clone.default]


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda y, _: y,
    "sigmoid": lambda y, _: torch.sigmoid(y),
    "tanh": lambda y, _: torch.tanh(y),
    "silu": lambda y, _: functional.silu(y),
    "hardswish": lambda y, _: functional.hardswish(y),
    "leaky": lambda y, _: functional.leaky_relu(y),
    "leaky by 0.3": lambda y, _: functional.leaky_relu(y, 0.3),
}
IF_FINITE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda y, _: torch.relu(y),
    "relu6": lambda y, _: functional.relu6(y),
    "hardtanh": lambda y, _: functional.hardtanh(y),
    "hardtanh by its own": lambda y, _: functional.hardtanh(y, -0.25, 0.5),
    "hardsigmoid": lambda y, _: functional.hardsigmoid(y),
    "gelu": lambda y, _: functional.gelu(y),
    "gelu by tanh": lambda y, _: functional.gelu(y, approximate="tanh"),
    "leaky by nothing": lambda y, _: functional.leaky_relu(y, 0.0),
}
SAME_IN_ANY_LAYOUT = {name: each for name, each in IF_FINITE.items() if "gelu" not in name}
"""Those of which PyTorch has one kernel."""
ADDITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added": lambda y, other: y + other,
    "added to": lambda y, other: y.add(other),
    "of other strides": lambda y, other: y + other.transpose(2, 3),
    "of a few numbers": lambda y, other: y + other[:, :, :1].expand(2, 6, 4, 4),
}
LAYERS: tuple[Callable[[], nn.Module], ...] = (
    partial(nn.Conv2d, 4, 6, 3),
    partial(nn.Conv2d, 4, 6, 5, padding=1, bias=False),
    partial(nn.Conv2d, 4, 6, 3, stride=2, padding=2, dilation=1, groups=2),
    partial(nn.Conv2d, 4, 6, 1, padding=(1, 0), stride=(2, 1)),
)


@pytest.mark.parametrize(("layer", "then"), list(product(LAYERS, ACTIVATIONS)))
def test_an_activation_is_fused(layer: Callable[[], nn.Module], then: str) -> None:
    assert operators(Then(layer(), ACTIVATIONS[then]), X) == [CONVOLUTION]


@pytest.mark.parametrize("then", [*ACTIVATIONS.values(), *IF_FINITE.values()])
def test_more_activations_are_fused_where_all_numbers_are_finite(
    then: Callable[[Tensor, Tensor], Tensor],
) -> None:
    model = Then(nn.Conv2d(4, 6, 3), then)
    assert operators(model, X, assume_finite=True) == [CONVOLUTION]


@pytest.mark.parametrize("then", ADDITIONS.values(), ids=ADDITIONS)
def test_so_is_relu_after_an_addition(then: Callable[[Tensor, Tensor], Tensor]) -> None:
    def relu_after(y: Tensor, other: Tensor) -> Tensor:
        return torch.relu(then(y, other))

    model = Then(nn.Conv2d(4, 6, 3), relu_after)
    fused = operators(model, X, OTHER, assume_finite=True)
    assert CONVOLUTION_ADD in fused
    assert aten.relu.default not in fused
    assert aten.relu.default in operators(model, X, OTHER)


def test_other_activations_after_an_addition_are_left_alone() -> None:
    model = Then(nn.Conv2d(4, 6, 3), lambda y, other: functional.hardtanh(y + other))
    assert aten.hardtanh.default in operators(model, X, OTHER, assume_finite=True)


@pytest.mark.parametrize("then", ADDITIONS.values(), ids=ADDITIONS)
def test_an_addition_is_fused(then: Callable[[Tensor, Tensor], Tensor]) -> None:
    fused = operators(Then(nn.Conv2d(4, 6, 3), then), X, OTHER)
    assert [target for target in fused if target is CONVOLUTION_ADD] == [CONVOLUTION_ADD]
    assert aten.add.Tensor not in fused


def test_the_branch_of_a_residual_is_added_where_it_is_known() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return (self.one(x) + self.two(-x)).contiguous()

    fused = operators(Residual(), X)
    assert sorted(map(str, fused)) == sorted(
        map(str, [aten.neg.default, CONVOLUTION, CONVOLUTION_ADD])
    )


LEFT_ALONE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **IF_FINITE,
    "read twice": lambda y, _: torch.sigmoid(y) * y,
    "added twice": lambda y, other: torch.add(y, other, alpha=2),
    "added to itself": lambda y, _: y + y,
    "broadcast": lambda y, other: y + other[:, :, :1],
    "in the other's format": lambda y, other: other + y,
    "a number": lambda y, _: y + 1,
    "of another type": lambda y, other: y + other.double(),
}


@pytest.mark.parametrize("then", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_follows_is_left_alone(then: Callable[[Tensor, Tensor], Tensor]) -> None:
    found = operators(Then(nn.Conv2d(4, 6, 3), then), X, OTHER)
    assert CONVOLUTION in found
    assert CONVOLUTION_ADD not in found
    assert len(found) > 1


class BiasOfTheCall(nn.Module):
    """A convolution whose bias is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 6, 3, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        y = functional.conv2d(x, self.layer.weight, bias.sin().expand(6, 2)[:, 0])
        return torch.sigmoid(y).contiguous()


@pytest.mark.parametrize("then", [*ACTIVATIONS.values(), *ADDITIONS.values()])
@pytest.mark.parametrize("bias", [torch.randn(12)[::2], torch.randn(1).expand(6)])
def test_a_bias_may_have_gaps_in_memory(
    bias: Tensor, then: Callable[[Tensor, Tensor], Tensor]
) -> None:
    layer = nn.Conv2d(4, 6, 3)
    layer.bias = nn.Parameter(bias)
    assert layer.bias.stride() == bias.stride()
    assert operators(Then(layer, then), X, OTHER)


def test_so_may_a_bias_of_the_call() -> None:
    assert CONVOLUTION in operators(BiasOfTheCall(), X, torch.randn(6, 1))


@pytest.mark.parametrize("is_written", [False, True])
def test_what_is_written_before_an_activation_is_read_before_it(is_written: bool) -> None:
    graph = channels_last_graph(Then(nn.Conv2d(4, 6, 3), lambda y, _: torch.sigmoid(y)), X)
    (convolution,) = graph.gm.graph.find_nodes(op="call_function", target=aten.convolution.default)
    write = aten.mul_.Tensor if is_written else aten.mul.Tensor
    with graph.gm.graph.inserting_after(convolution):
        graph.gm.graph.call_function(write, (convolution.args[0], 2))
    fuse_activations(graph.gm, fixed_nodes(graph.gm, graph.static))
    sigmoids = graph.gm.graph.find_nodes(op="call_function", target=aten.sigmoid.default)
    assert bool(sigmoids) is is_written


def test_an_activation_by_a_computed_number_is_left_alone() -> None:
    model = Then(nn.Conv2d(4, 6, 3), lambda y, _: functional.leaky_relu(y, 0.5))
    graph = channels_last_graph(model, X)
    (activation,) = graph.gm.graph.find_nodes(op="call_function", target=aten.leaky_relu.default)
    with graph.gm.graph.inserting_before(activation):
        x = activation.args[0].args[0]
        slope = graph.gm.graph.call_function(aten.sym_size.int, (x, 0))
    activation.update_arg(1, slope)
    fuse_activations(graph.gm, fixed_nodes(graph.gm, graph.static))
    assert activation.target is aten.leaky_relu.default


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv1d(4, 2, 2), torch.randn(1, 4, 5)),
        (nn.Conv3d(4, 2, 2), torch.randn(1, 4, 3, 3, 3)),
        (nn.ConvTranspose2d(4, 2, 2), X),
        (nn.Conv2d(4, 2, 2).double(), X.double()),
        (nn.Conv2d(4, 2, 2).bfloat16(), X.bfloat16()),
    ],
)
def test_other_convolutions_are_left_alone(layer: nn.Module, x: Tensor) -> None:
    graph = rewritten(layer, x)
    assert CONVOLUTION not in [node.target for node in graph.gm.graph.nodes]


def test_nothing_changes_where_the_user_turned_the_library_off() -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        assert CONVOLUTION not in operators(nn.Conv2d(4, 2, 2), X)


@pytest.mark.parametrize(
    "then",
    [*ACTIVATIONS.values(), *SAME_IN_ANY_LAYOUT.values(), *ADDITIONS.values()],
    ids=[*ACTIVATIONS, *SAME_IN_ANY_LAYOUT, *ADDITIONS],
)
def test_what_is_not_a_number_stays_so(then: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, other = X.clone(), OTHER.clone()
    x[0, 0, 2, 2], x[1, 1, 1, 1], x[1, 2, 5, 5] = torch.nan, torch.inf, -torch.inf
    other[1, 3, 3, 3], other[1, 0, 3, 3] = torch.nan, torch.inf
    model = Then(nn.Conv2d(4, 6, 3), then)
    graph = rewritten(model, x, other)
    with torch.no_grad():
        expected = model(x, other)
        (result,) = graph.gm(*graph.arguments)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
