"""Escape analysis: which values of an ATen graph the caller receives, or may be written."""

import operator
from collections.abc import Hashable, Iterable, Iterator

import torch
from torch.fx import Graph, Node

from nimble_fx.ir.operator_aliasing import UNDECLARED_VIEWS, written_or_returned
from nimble_fx.torch_internals.leaves import nodes_in, tensors_of
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import does_what_its_schema_says
from nimble_fx.torch_internals.storages import storage_key


def escaping_or_written(graph: Graph) -> set[Node]:
    """The nodes whose storage is returned, is written, or is passed to a custom operator.

    A custom operator may return or keep its arguments, whatever its schema says. Aliases are found
    by the fake tensors, which alias as the real ones will, and by the schemas, because a graph pass
    may have set a new fake tensor on a node. Cost: O(nodes).
    """
    memories = aliases(graph)
    escaping = {s for node in graph.nodes for arg in _escaping_args(node) for s in memories[arg]}
    return {node for node, shared in memories.items() if not shared.isdisjoint(escaping)}


def aliases(graph: Graph) -> dict[Node, set[Hashable]]:
    """For each node, the identities of its results' memory, which aliases have in common.

    Cost: O(nodes).
    """
    found: dict[Node, set[Hashable]] = {}
    for node in graph.nodes:
        bases = list(_bases(node))
        own: set[Hashable] = {*storages(node), *([] if bases else [node])}
        is_apart = _is_new_item(node) and own and own <= found[bases[0]]
        found[node] = own if is_apart else own.union(*(found[base] for base in bases))
    return found


def _is_new_item(node: Node) -> bool:
    """Whether a node is an item of results that alias no argument: only of its own memory."""
    return node.target is operator.getitem and not any(_bases(node.all_input_nodes[0]))


def _bases(node: Node) -> Iterator[Node]:
    """The arguments that a result may alias."""
    if node.target is operator.getitem or node.target in UNDECLARED_VIEWS:
        yield from node.all_input_nodes
    elif isinstance(node.target, OpOverload):
        for i, parameter, _, is_returned in written_or_returned(node.target):
            if is_returned:
                yield from _argument(node, i, parameter)


def _escaping_args(node: Node) -> Iterator[Node]:
    """The arguments that the node writes, returns to the caller, or passes to a custom operator."""
    if isinstance(node.target, OpOverload) and keeps_to_its_schema(node.target):
        yield from written_args(node)
    elif node.target is not operator.getitem:
        yield from node.all_input_nodes


def written_args(node: Node) -> Iterator[Node]:
    """The arguments that a node writes to, by its operator's schema."""
    if isinstance(node.target, OpOverload):
        for i, parameter, is_written, _ in written_or_returned(node.target):
            if is_written:
                yield from _argument(node, i, parameter)


def keeps_to_its_schema(op: OpOverload) -> bool:
    """Whether its schema declares its aliases; some prims return an argument undeclared."""
    return does_what_its_schema_says(op) and op.namespace != "prims"


def _argument(node: Node, i: int, parameter: str) -> Iterable[Node]:
    value = node.args[i] if i < len(node.args) else node.kwargs.get(parameter)
    return nodes_in(value)


def storages(node: Node) -> dict[int, torch.Tensor]:
    """The keys of the storages of a node's fake tensors, each with a tensor that lies there."""
    tensors = [each for each in tensors_of(node) if each.layout is torch.strided]
    return {storage_key(tensor): tensor for tensor in tensors}
