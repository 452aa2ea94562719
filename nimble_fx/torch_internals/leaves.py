"""The tensors and nodes in tuples, lists and dicts, nested to any depth."""

import torch
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.torch_internals.names import pytree


def tensors_in(value: object) -> list[Tensor]:
    """The tensors in a value."""
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def nodes_in(value: object) -> list[Node]:
    """The nodes in an argument of a node."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Node)]


def tensors_of(node: Node) -> list[Tensor]:
    """The fake tensors of a node's results."""
    return tensors_in(node.meta.get("val"))


def devices_of(graph: Graph) -> set[torch.device]:
    """The devices of all tensors in a graph."""
    return {tensor.device for node in graph.nodes for tensor in tensors_of(node)}
