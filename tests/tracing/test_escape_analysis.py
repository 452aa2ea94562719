"""Which values of a graph lie in memory that the caller gets or that is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.tracing.escape_analysis import aliases, escaping_or_written
from tests.support.schedules import aten_graph


def written_in_part(x: Tensor) -> Tensor:
    made = torch.zeros(3)
    made[1:].add_(1)
    return x + made.sum()


def statistics(x: Tensor) -> Tensor:
    mean, var = torch.zeros(3), torch.ones(3)
    normal, *_ = torch.ops.aten.native_batch_norm.default(x, None, None, mean, var, True, 0.1, 1e-5)
    return normal * 1


ITEMS = ("getitem", "getitem_1", "getitem_2")
EXPOSED: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "returned": (lambda x: (x + 1, x.sin().t().unsqueeze(0)), {"add", "sin", "t", "unsqueeze"}),
    "returned in part": (lambda x: x.exp().unbind()[0], {"exp", "unbind", *ITEMS}),
    "one of several that are made": (
        lambda x: (torch._foreach_add([x, x], 1)[0], torch._foreach_mul([x, x], 2)[1] * 1),
        {"_foreach_add", "getitem", "mul"},
    ),
    "one of several": (lambda x: x.exp().split(1)[0] * 1, {"mul"}),
    "written": (written_in_part, {"zeros", "slice_1", "add_", "add"}),
    "written in secret": (statistics, {"zeros", "ones", "mul"}),
}
"""Programs, and the operators whose results escape or are written."""


@pytest.mark.parametrize("name", EXPOSED)
def test_what_is_returned_or_written_is_exposed_with_all_that_shares_its_memory(name: str) -> None:
    function, expected = EXPOSED[name]
    graph = aten_graph(function, torch.rand(3, 3), functional=False).graph
    found = {node.name for node in escaping_or_written(graph) if node.op == "call_function"}
    assert found == expected


def test_a_chain_of_views_has_the_identities_of_its_memory_alone() -> None:
    def chain(x: Tensor) -> Tensor:
        y = x + 1
        for _ in range(9):
            y = y.t().add_(1)
        return y

    graph = aten_graph(chain, torch.rand(3, 3), functional=False).graph
    (made,) = (node for node in graph.nodes if node.name == "add")
    shared = {node: of for node, of in aliases(graph).items() if not of.isdisjoint({made})}
    assert len(shared) == 1 + 2 * 9
    assert all(of == shared[made] for of in shared.values())
