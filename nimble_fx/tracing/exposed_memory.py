"""Which values of an ATen graph lie in memory that the caller gets, or that somebody may write."""

import operator
from collections.abc import Hashable, Iterable, Iterator

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from nimble_fx.ir.operator_aliasing import UNDECLARED_VIEWS, written_or_returned


def exposed(graph: Graph) -> set[Node]:
    """The nodes whose memory is returned, is written, or is handed to an operator not of ATen.

    Such an operator may return what it takes, or keep it, whatever its schema says. Memory is
    followed by the fake tensors, which alias as the real ones will, and by the schemas, because a
    graph pass may have given a node a fake tensor of its own. Cost: O(nodes).
    """
    lies_in: dict[Node, set[Hashable]] = {}
    for node in graph.nodes:
        places: set[Hashable] = {node, *_storages(node)}
        lies_in[node] = places.union(*(lies_in[base] for base in _bases(node)))
    open_to_others = {p for node in graph.nodes for taken in _open(node) for p in lies_in[taken]}
    return {node for node, places in lies_in.items() if not places.isdisjoint(open_to_others)}


def _bases(node: Node) -> Iterator[Node]:
    """The arguments whose memory a result may lie in."""
    if node.target is operator.getitem or node.target in UNDECLARED_VIEWS:
        yield from node.all_input_nodes
    elif isinstance(node.target, OpOverload):
        for i, parameter, _, is_returned in written_or_returned(node.target):
            if is_returned:
                yield from _given(node, i, parameter)


def _open(node: Node) -> Iterator[Node]:
    """The arguments whose memory is open to others from here on."""
    target = node.target
    if isinstance(target, OpOverload) and target.namespace == "aten":
        for i, parameter, is_written, _ in written_or_returned(target):
            if is_written:
                yield from _given(node, i, parameter)
    elif target is not operator.getitem:
        yield from node.all_input_nodes


def _given(node: Node, i: int, parameter: str) -> Iterable[Node]:
    value = node.args[i] if i < len(node.args) else node.kwargs.get(parameter)
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Node))


def _storages(node: Node) -> Iterator[int]:
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value.untyped_storage()._cdata
