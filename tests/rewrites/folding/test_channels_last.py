"""Convolutions use the channels-last format; other operators get their original formats."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import nimble_fx
from nimble_fx.rewrites.folding.channels_last import channels_last
from nimble_fx.rewrites.folding.hoist_weights import fixed_nodes
from nimble_fx.torch_internals.kernels.upsampling import upsampling_as_one_operator
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import inference_graph

X = torch.randn(2, 4, 6, 6)


class Then(nn.Module):
    """A function of a convolution's result."""

    def __init__(self, convolution: nn.Module, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.convolution, self.function = convolution, function

    def forward(self, x: Tensor) -> object:
        return self.function(self.convolution(x))


def n_copies(model: nn.Module, x: Tensor = X) -> tuple[int, int]:
    """How many weights, and how many other values, are copied; the rewrite computes the same."""
    with upsampling_as_one_operator():
        graph = inference_graph(model.eval(), x)
    weights = fixed_nodes(graph.gm, graph.static)
    gm = channels_last(graph.gm, weights)
    gm.graph.lint()
    with torch.no_grad():
        assert_as_accurate(model, (x,), gm(*graph.arguments))
    formats = [
        node.kwargs["memory_format"]
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    ]
    return formats.count(torch.channels_last), formats.count(torch.contiguous_format)


def convolution() -> nn.Module:
    return nn.Conv2d(4, 6, 3)


@pytest.mark.parametrize(
    ("function", "n_restored"),
    [
        (lambda y: torch.relu(y).mean((2, 3)), 0),
        (lambda y: nn.functional.max_pool2d(y, 2).sum((2, 3)), 0),
        (lambda y: torch.cat([y, y + 1], 1).mean((2, 3)), 0),
        *(
            (lambda y, f=f: f(y).mean((2, 3)), 0)
            for f in (
                partial(functional.adaptive_avg_pool2d, output_size=2),
                partial(functional.avg_pool2d, kernel_size=2),
                functional.hardswish,
                functional.leaky_relu,
                partial(functional.pad, pad=(1, 2, 0, 1), value=0.5),
                *(
                    partial(functional.interpolate, scale_factor=1.5, mode=mode)
                    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
                ),
            )
        ),
        (lambda y: y, 1),
        (lambda y: (y, torch.relu(y)), 2),
        (lambda y: y.flatten(1), 1),
        (lambda y: (y[:, 1:], y[:, 2:]), 1),
        (lambda y: y.as_strided((2, 2), (1, 2)), 1),
        (lambda y: y.sort()[0].mean((2, 3)), 1),
        (lambda y: y.stride()[1] + y.mean((2, 3)), 0),
    ],
)
def test_results_are_copied_back_where_their_strides_matter(
    function: Callable[[Tensor], object], n_restored: int
) -> None:
    assert n_copies(Then(convolution(), function)) == (1, n_restored)


def test_a_chain_of_convolutions_stays_in_the_format() -> None:
    chain = nn.Sequential(convolution(), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.MaxPool2d(2))
    assert n_copies(nn.Sequential(chain, nn.Flatten())) == (2, 1)


@pytest.mark.parametrize("last", [nn.Linear(8, 3), nn.Flatten()], ids=str)
def test_images_of_one_channel_between_convolutions_are_copied_back(last: nn.Module) -> None:
    """They are contiguous in both formats, and kernels return others than promised."""
    to_one, to_four = nn.Conv2d(4, 1, 1), nn.Conv2d(1, 4, 1)
    model = nn.Sequential(to_one, nn.Upsample(scale_factor=2), to_four, last).eval()
    x = torch.randn(2, 4, 4, 4)
    compiled = nimble_fx.compile(model, x, fold_weights=True, on_fallback="error")
    with torch.no_grad():
        assert_as_accurate(model, (x,), compiled(x))


def test_images_that_are_in_the_format_already_are_left_alone() -> None:
    x = X.contiguous(memory_format=torch.channels_last)
    assert n_copies(convolution(), x) == (0, 0)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv1d(4, 2, 2), torch.randn(1, 4, 5)),
        (nn.Conv3d(4, 2, 2), torch.randn(1, 4, 3, 3, 3)),
        (nn.ConvTranspose2d(4, 2, 2), X),
        (nn.Linear(6, 2), X),
    ],
)
def test_others_are_left_alone(layer: nn.Module, x: Tensor) -> None:
    assert n_copies(layer, x) == (0, 0)


def test_a_weight_that_is_computed_from_an_input_is_left_alone() -> None:
    class Dynamic(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, x[:, :, :2, :2].contiguous())

    n_weights, _ = n_copies(Dynamic())
    assert n_weights == 0


class Volumes(nn.Module):
    """A convolution in three dimensions of what is computed from the result of one in two."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.volumes = convolution(), nn.Conv3d(2, 2, 1)
        self.factors = nn.Parameter(torch.randn(3, 1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.volumes(self.images(x) * self.factors)
        return result


@pytest.mark.parametrize(
    ("model", "dtype", "n_converted"),
    [
        (convolution(), torch.float32, 1),
        (convolution(), torch.float64, 0),
        (Volumes(), torch.float32, 1),
    ],
)
def test_plans_convert_what_a_gpu_takes_in_the_format(
    model: nn.Module, dtype: torch.dtype, n_converted: int
) -> None:
    program = nimble_fx.plan(model.to(dtype), X.to(dtype), device="h100", fold_weights=True)
    folded = program.scheduled.folded
    weights = () if folded is None else folded.graph.tasks
    assert [str(task.target) for task in weights].count("aten.clone.default") == n_converted


VIEWS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "chunk": lambda y: y.chunk(2, 1),
    "split": lambda y: y.split(2, 1),
    "split_with_sizes": lambda y: y.split([1, 2, 3], 1),
    "tensor_split": lambda y: y.tensor_split([1, 4], 1),
    "unsafe_chunk": lambda y: y.unsafe_chunk(2, 1),
    "unbind": lambda y: y.unbind(1),
    "hsplit": lambda y: y.hsplit(2),
    "slice": lambda y: (y[:, :3], y[:, 3:]),
    "select": lambda y: (y[0], y[:, 1]),
    "view": lambda y: (y.view(2, 3, 2, -1),),
    "permute": lambda y: (y.permute(0, 2, 3, 1),),
    "unfold": lambda y: (y.unfold(2, 2, 2),),
    "diagonal": lambda y: (y.diagonal(dim1=2, dim2=3),),
    "expand": lambda y: (y[:, :, None].expand(-1, -1, 2, -1, -1),),
    "view_as_complex": lambda y: (torch.view_as_complex(y.unflatten(3, (2, 2))).real,),
}


@pytest.mark.parametrize("options", [{"policy": "nimble"}, {"device": "virtual"}], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_views_of_a_convolutions_result_are_scheduled(view: str, options: dict[str, Any]) -> None:
    def first_and_last(y: Tensor) -> Tensor:
        views = VIEWS[view](y)
        return views[0].sigmoid().sum() + views[-1].cos().sum()

    model = Then(convolution(), first_and_last).eval()
    compiled = nimble_fx.compile(model, X, fold_weights=True, on_fallback="error", **options)
    with torch.no_grad():
        assert_as_accurate(model, (X,), compiled(X))
    assert len(compiled.programs) == 1
    nimble_fx.plan(model, X, fold_weights=True, on_fallback="error")
