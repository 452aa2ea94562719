"""Values that only depend on weights leave the calls, unless callers could notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.rewrites.folding.fold_weights import fold_weights
from nimble_fx.rewrites.folding.hoist_weights import Hoisted, hoist_weights
from tests.support.bits import assert_same_bits
from tests.support.inference_graphs import inference_graph


class Of(nn.Module):
    """A function of a weight, a buffer and an input."""

    state: Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(4, 4))
        self.register_buffer("state", torch.randn(4))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight, self.state)


def hoisted(function: Callable[..., Any]) -> Hoisted | None:
    """The parts of a function's graph, which together give the graph's bits."""
    model, x = Of(function), torch.randn(4, 4)
    graph = inference_graph(model, x)
    parts = hoist_weights(graph.gm, graph.static)
    if parts is not None:
        parts.main.graph.lint()
        weights = parts.weights(*[graph.arguments[i] for i in parts.sources])
        ours = parts.main(*[graph.arguments[i] for i in parts.kept], *weights)
        assert_same_bits(list(ours), list(graph.gm(*graph.arguments)))
    return parts


@pytest.mark.parametrize(
    ("function", "n_results"),
    [
        (lambda x, w, s: x @ (w * s), 1),
        (lambda x, w, s: x @ (w * s).t() + (w * s).sum(), 2),
        (lambda x, w, s: x @ torch.tanh(w + 1).view(2, 8)[0].view(4, 2), 1),
        (lambda x, w, s: sum(x * each for each in torch.tanh(w).unbind()[:3]), 3),
        (lambda x, w, s: (lambda v: x @ v + x @ v.t())(w * s), 2),
        (lambda x, w, s: x * w.max(1)[0] + x * torch.std_mean(w, 1)[1], 2),
        (lambda x, w, s: (lambda v: (x * v, x - v))(w + s), 1),
        (lambda x, w, s: x + w.norm() * s.exp(), 1),
    ],
)
def test_it_is_computed_once(function: Callable[..., Any], n_results: int) -> None:
    parts = hoisted(function)
    assert parts is not None
    assert len(parts.sources_by_result) == n_results
    assert torch.ops.aten.unbind.int not in {node.target for node in parts.main.graph.nodes}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, s: x @ w.t() + s,
        lambda x, w, s: x @ w.t().view(-1, 4)[1:].t(),
        lambda x, w, s: x + torch.rand_like(w),
        lambda x, w, s: (x, w * 2),
        lambda x, w, s: (x + 1, (w * 2)[1:]),
        lambda x, w, s: (s.add_(1), x + s * 2)[1],
    ],
    ids=["views", "more views", "random", "returned", "a view returned", "written"],
)
def test_it_stays_in_the_calls(function: Callable[..., Any]) -> None:
    graph = inference_graph(Of(function), torch.randn(4, 4))
    assert fold_weights(graph.gm, graph.static, library="oneDNN") is None


def test_results_are_named_after_their_largest_weight() -> None:
    parts = hoisted(lambda x, w, s: x @ (s * w))
    assert parts is not None
    (source,) = parts.sources_by_result.values()
    shapes = {node.name: node.meta["val"].shape for node in parts.weights.graph.nodes if node.meta}
    assert shapes[source] == (4, 4)
