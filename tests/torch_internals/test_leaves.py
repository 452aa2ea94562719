"""Tensors and nodes are found in any nesting, in order, with repetitions."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.torch_internals.leaves import nodes_in, tensors_in, tensors_of

LEAVES = [torch.empty(1), torch.empty(2), *map(Graph().placeholder, "xy"), None, 1, torch.float32]


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(inner, max_size=3)
    return lists | lists.map(tuple) | st.dictionaries(st.sampled_from("abc"), inner)


def flat(value: object) -> list[object]:
    if isinstance(value, dict):
        return flat(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in flat(each)]
    return [value]


@given(st.recursive(st.sampled_from(LEAVES), containers, max_leaves=9))
def test_tensors_and_nodes_are_found(value: object) -> None:
    node = Graph().placeholder("results")
    node.meta["val"] = value
    tensors = [id(leaf) for leaf in flat(value) if isinstance(leaf, Tensor)]
    assert list(map(id, tensors_in(value))) == tensors
    assert list(map(id, tensors_of(node))) == tensors
    assert nodes_in(value) == [leaf for leaf in flat(value) if isinstance(leaf, Node)]


def test_a_node_without_results_has_no_tensors() -> None:
    assert tensors_of(Graph().placeholder("x")) == []
