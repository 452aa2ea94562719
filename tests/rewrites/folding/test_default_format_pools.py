"""Small images are pooled in the default format; results keep their format."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.rewrites.folding.default_format_pools import MAX_ELEMENTS, default_format_pools
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import inference_graph
from tests.support.promised_types import run_as_promised

POOL = torch.ops.aten.max_pool2d_with_indices.default
LAST = torch.channels_last


class Pool(nn.Module):
    """Pools an image, and does something with the result."""

    def __init__(self, then: Callable[[Any], Any] = lambda y: y, **options: Any) -> None:
        super().__init__()
        self.then, self.options = then, {"kernel_size": 3} | options

    def forward(self, x: Tensor) -> Any:
        return self.then(nn.functional.max_pool2d(x, **self.options))


def formats(model: nn.Module, x: Tensor) -> list[bool]:
    """Which pools read the default format after the rewrite, which computes the same."""
    graph = inference_graph(model.eval(), x)
    gm = default_format_pools(graph.gm)
    assert_as_accurate(model, (x,), run_as_promised(gm, *graph.arguments))
    pools = gm.graph.find_nodes(op="call_function", target=POOL)
    return [node.all_input_nodes[0].meta["val"].is_contiguous() for node in pools]


def image(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 1, "padding": 1}, {"stride": 2, "ceil_mode": True}, {"kernel_size": (1, 9)}],
)
def test_small_images_are_pooled_in_the_default_format(options: dict[str, Any]) -> None:
    x = image(2, 4, 12, 12)
    x[0, 0, 3, 3] = float("nan")
    assert formats(Pool(**options), x) == [True]
    assert formats(Pool(lambda y: (y.relu(), y.sum()), **options), x) == [True]


def test_only_what_is_read_is_copied_back() -> None:
    gm = default_format_pools(inference_graph(Pool().eval(), image(2, 4, 12, 12)).gm)
    copies = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert [node.all_input_nodes[0].target for node in copies[1:]] == [operator.getitem]
    assert all(node.users for node in copies)


def test_others_are_left_as_they_are() -> None:
    x = image(2, 4, 12, 12)
    assert formats(Pool(kernel_size=2), x) == [False]
    places = Pool(lambda results: results[1] + results[0], return_indices=True)
    assert formats(places, x) == [False]
    large = MAX_ELEMENTS // (4 * 64 * 64)
    assert formats(Pool(), image(large, 4, 64, 64)) == [True]
    assert formats(Pool(), image(large + 1, 4, 64, 64)) == [False]


def test_so_are_those_of_sizes_that_are_not_known() -> None:
    x = image(2, 4, 12, 12)
    torch._dynamo.mark_dynamic(x, 0)
    assert formats(Pool(), x) == [False]


def test_images_in_the_default_format_are_not_copied() -> None:
    graph = inference_graph(Pool(), torch.randn(2, 4, 12, 12))
    n_nodes = len(graph.gm.graph.nodes)
    assert len(default_format_pools(graph.gm).graph.nodes) == n_nodes
