"""Batch normalization is folded into the convolution before it, if nothing else reads that."""

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.rewrites.folding.fold_batch_norm import fold_batch_norm
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import inference_graph

_aten = torch.ops.aten


class Pair(nn.Module):
    """A convolution and the normalization of its result."""

    def __init__(self, convolution: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, norm
        for value in (*norm.parameters(), *norm.buffers()):
            if value.is_floating_point():
                nn.init.uniform_(value, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.convolution(x))
        return result


class ReadTwice(Pair):
    """The convolution's result is read by another operator too."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        result: Tensor = self.norm(y) + y
        return result


def n_norms(model: nn.Module, x: Tensor, weights: set[str] | None = None) -> int:
    """How many normalizations are left after the rewrite, which computes the same."""
    graph = inference_graph(model, x)
    inputs = graph.gm.graph.find_nodes(op="placeholder")
    names = graph.static if weights is None else weights
    gm = fold_batch_norm(graph.gm, {node for node in inputs if node.name in names})
    gm.graph.lint()
    with torch.no_grad():
        assert_as_accurate(model, (x,), gm(*graph.arguments))
    return len([node for node in gm.graph.nodes if "batch_norm" in str(node.target)])


X, VOLUME, SIGNAL = torch.randn(2, 4, 5, 5), torch.randn(1, 4, 3, 3, 3), torch.randn(2, 4, 5)


@pytest.mark.parametrize(
    ("convolution", "norm", "x"),
    [
        (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), X),
        (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False, eps=0.1), X),
        (nn.Conv2d(4, 8, 3, groups=4, stride=2), nn.BatchNorm2d(8), X),
        (nn.Conv1d(4, 3, 2), nn.BatchNorm1d(3), SIGNAL),
        (nn.Conv3d(4, 3, 2), nn.BatchNorm3d(3), VOLUME),
    ],
)
def test_it_is_folded(convolution: nn.Module, norm: nn.Module, x: Tensor) -> None:
    assert n_norms(Pair(convolution, norm).eval(), x) == 0


def test_what_another_operator_reads_is_left_alone() -> None:
    assert n_norms(ReadTwice(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval(), X) == 1


def test_a_transposed_convolution_is_left_alone() -> None:
    assert n_norms(Pair(nn.ConvTranspose2d(4, 4, 1), nn.BatchNorm2d(4)).eval(), X) == 1


def test_statistics_of_the_batch_are_left_alone() -> None:
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    assert n_norms(Pair(nn.Conv2d(4, 4, 1), norm).eval(), X) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_norm", [None, torch.float32])
def test_half_types_are_folded_in_float32(dtype: torch.dtype, of_norm: torch.dtype | None) -> None:
    layers = nn.Conv2d(4, 6, 3).to(dtype), nn.BatchNorm2d(6).to(of_norm or dtype)
    assert n_norms(Pair(*layers).eval(), X.to(dtype)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_as_nearly_as_eager_where_channels_differ_by_orders_of_magnitude(
    dtype: torch.dtype,
) -> None:
    convolution, norm = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    model, magnitudes = Pair(convolution, norm), torch.tensor([1e-3, 1e-2, 0.1, 1, 10, 30])
    with torch.no_grad():
        convolution.weight.mul_(magnitudes.view(-1, 1, 1, 1))
        for statistic in (norm.running_mean, norm.running_var):
            assert statistic is not None
            statistic.copy_(magnitudes if statistic is norm.running_mean else magnitudes**2)
    assert n_norms(model.eval().to(dtype), X.to(dtype)) == 0


def test_what_is_not_among_the_weights_is_left_alone() -> None:
    model = Pair(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()
    graph = inference_graph(model, X)
    read = [name for name in graph.static if "num_batches" not in name]
    assert len(read) == 6
    for name in read:
        assert n_norms(model, X, graph.static - {name}) == 1


def test_an_image_of_one_channel_is_left_alone_as_its_format_may_change() -> None:
    assert n_norms(Pair(nn.Conv2d(4, 1, 1), nn.BatchNorm2d(1)).eval(), X) == 1


def test_float16_is_left_alone_where_a_small_eps_may_lead_out_of_its_range() -> None:
    model = Pair(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, eps=1e-8)).eval().half()
    graph = inference_graph(model, X.half())
    fold_batch_norm(graph.gm, set(graph.gm.graph.find_nodes(op="placeholder")))
    assert any("batch_norm" in str(node.target) for node in graph.gm.graph.nodes)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_types_that_pytorch_refuses_are_an_error_of_pytorchs(
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    model = Pair(nn.Conv2d(4, 4, 1).to(dtypes[0]), nn.BatchNorm2d(4).to(dtypes[1])).eval()
    compiled = torch.compile(model, backend="nimble", options={"fold_weights": True})
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"^mixed dtype"):
        compiled(X.to(dtypes[0]))
