"""Products on a GPU apply relu themselves, if nothing else reads the results between."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.rewrites.fuse_product_relu import fuse_product_relu
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import inference_graph

aten = torch.ops.aten
FUSED = aten._addmm_activation.default


class Then(nn.Module):
    """A function of the result of a layer."""

    def __init__(self, function: Callable[[Tensor], Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.function = layer or nn.Linear(4, 6), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


def operators(model: nn.Module, x: Tensor, device: str = "meta") -> list[object]:
    """The operators after the rewrite of the graph for a device; it computes the same."""
    model.eval()
    arguments = inference_graph(model, x).arguments
    graph = inference_graph(copy.deepcopy(model).to(device), x.to(device))
    gm = fuse_product_relu(graph.gm)
    gm.graph.lint()
    with torch.no_grad():
        assert_as_accurate(model, (x,), gm(*arguments))
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_relu_is_fused(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = operators(Then(torch.relu).to(dtype), torch.randn(shape, dtype=dtype))
    assert FUSED in found
    assert not {aten.addmm.default, aten.relu.default} & set(found)


@pytest.mark.parametrize("assume_finite", [False, True])
def test_programs_have_it_where_numbers_are_finite(assume_finite: bool) -> None:
    model = Then(torch.relu).eval()
    plan = nimble_fx.plan(model, torch.randn(3, 4), device="h100", assume_finite=assume_finite)
    assert (FUSED in [task.target for task in plan.graph.tasks]) == assume_finite


LEFT_ALONE: dict[str, Callable[[Tensor], Any]] = {
    "another activation": torch.sigmoid,
    "read by others": lambda y: torch.relu(y) + y,
    "returned": lambda y: (torch.relu(y), y),
    "viewed and read": lambda y: torch.relu(y.view(3, 2, 3)) + y.view(3, 2, 3),
    "read as a view by others": lambda y: [f(y.view(3, 2, 3)) for f in (torch.relu, torch.tanh)],
    "a part of it": lambda y: torch.relu(y[:, 1:]),
    "with a matrix as bias": lambda y: torch.relu(torch.addmm(y, y, y.t() @ y)),
    "with a factor of the product": lambda y: torch.relu(torch.addmm(y[0], y, y.t() @ y, alpha=2)),
    "with a factor of the bias": lambda y: torch.relu(torch.addmm(y[0], y, y.t() @ y, beta=2)),
}


@pytest.mark.parametrize("function", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_others_are_left_alone(function: Callable[[Tensor], Any]) -> None:
    assert FUSED not in operators(Then(function), torch.randn(3, 4))


def test_so_are_those_of_doubles_and_without_bias() -> None:
    x = torch.randn(3, 4)
    assert FUSED not in operators(Then(torch.relu).double(), x.double())
    assert FUSED not in operators(Then(torch.relu, nn.Linear(4, 6, bias=False)), x)


def test_so_is_one_that_sums_nothing_which_pytorch_returns_without_relu() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        nothing = nn.Linear(0, 6)
    assert FUSED not in operators(Then(torch.relu, nothing), torch.randn(3, 0))


def test_so_are_those_on_a_cpu() -> None:
    x = torch.randn(3, 4)
    assert FUSED not in operators(Then(torch.relu), x, "cpu")
