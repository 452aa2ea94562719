"""Whether only the first result of an operator is read."""

import operator

import pytest
import torch
from torch.fx import Graph

from nimble_fx.rewrites.results_read import is_only_first_read


@pytest.mark.parametrize(
    ("read", "unread", "is_only_first"),
    [
        ([], [], True),
        ([0], [], True),
        ([0, 0], [1, 2], True),
        ([1], [], False),
        ([0, 1], [], False),
        ([-1], [0], False),
    ],
)
def test_results_that_nothing_reads_do_not_count(
    read: list[int], unread: list[int], is_only_first: bool
) -> None:
    graph = Graph()
    node = graph.call_function(torch.max, (graph.placeholder("x"), 0))
    items = [graph.call_function(operator.getitem, (node, k)) for k in [*unread, *read]]
    graph.output(items[len(unread) :])
    assert is_only_first_read(node) is is_only_first


def test_a_graph_that_returns_all_results_reads_them() -> None:
    graph = Graph()
    node = graph.call_function(torch.max, (graph.placeholder("x"), 0))
    graph.output(node)
    assert not is_only_first_read(node)
