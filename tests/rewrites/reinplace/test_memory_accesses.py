"""The memory of values: the nodes that introduce it, and its readers."""

import torch
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.rewrites.reinplace.memory_accesses import memories_of
from tests.support.schedules import aten_graph

aten = torch.ops.aten


def node(graph: Graph, target: object) -> Node:
    (found,) = [each for each in graph.nodes if each.target is target]
    return found


def test_views_lie_in_the_memory_of_their_base_which_is_read_where_they_are() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2)[1:].exp() + 1

    graph = aten_graph(function, torch.randn(3)).graph
    memories = memories_of(graph)
    product, view, exp = (
        node(graph, each) for each in (aten.mul.Tensor, aten.slice.Tensor, aten.exp.default)
    )
    memory = memories[product]
    assert memory is memories[view]
    assert memory is not memories[exp]
    assert memory.is_allocated
    assert not memory.escapes
    assert memory.is_read_from(exp, ())
    assert memory.is_read_from(product, ())
    assert not memory.is_read_from(exp, (exp,))
    assert not memory.is_read_from(node(graph, aten.add.Tensor), ())


def test_what_the_caller_gets_is_read_for_ever() -> None:
    graph = aten_graph(lambda x: ((x * 2)[1:], x + 1), torch.randn(3)).graph
    memory = memories_of(graph)[node(graph, aten.mul.Tensor)]
    assert memory.escapes
    assert memory.is_read_from(node(graph, aten.add.Tensor), ())


def test_an_input_is_not_allocated() -> None:
    graph = aten_graph(lambda x: x.view(-1) + 1, torch.randn(3, 1)).graph
    memory = memories_of(graph)[node(graph, aten.view.default)]
    assert not memory.is_allocated


def test_what_may_lie_in_either_of_two_operands_shares_the_memory_of_both() -> None:
    def function(x: Tensor) -> Tensor:
        values, indices = x * 2, x.long()
        aten.sort.values(x, 0, values=values, indices=indices)
        return values.exp()

    graph = aten_graph(function, torch.randn(3), functional=False).graph
    memories = memories_of(graph)
    values = memories[node(graph, aten.mul.Tensor)]
    assert values is memories[node(graph, aten._to_copy.default)]
    assert not values.is_allocated
