"""Common subexpression elimination: what a graph computes twice, it computes once.

Before: a = relu(x); b = relu(x), as in a cell whose branches each begin with their own activation.
After: a = relu(x), which also those read that read b.

AOTAutograd does this to training graphs alone, and takes 0.0 and -0.0 for the same argument.
"""

from collections.abc import Hashable, Iterator
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.names import pytree
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.tracing.constant_folding import follows_from_arguments
from nimble_fx.tracing.escape_analysis import escaping_or_written


def eliminate_common_subexpressions(gm: GraphModule) -> GraphModule:
    """Replaces each operator by an earlier one that returns the same. Cost: O(nodes).

    Requires: an ATen operator whose results depend on its arguments alone. Neither they nor its
    arguments are written, or returned to the caller, who could tell one from two.
    Ensures: the same bits.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    shared = escaping_or_written(gm.graph)
    first: dict[Hashable, Node] = {}
    repeats: list[
        Node
    ] = []  # alive to the end, so that no new storage has the key of one of theirs
    storages: set[int] = set()
    for node in gm.graph.nodes:
        if not storages.isdisjoint(_storages(node)):  # a view of what is computed elsewhere now
            node.meta["val"] = fake_result(node)
        if not _is_replaceable(node, shared):
            continue
        same = first.setdefault(_key(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
            repeats.append(node)
            storages.update(_storages(node))
    for node in reversed(repeats):
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _is_replaceable(node: Node, shared: AbstractSet[Node]) -> bool:
    """Whether nothing but its arguments tells it from another call of its operator."""
    return (
        node.op == "call_function"
        and follows_from_arguments(node)
        and not node.meta.get("unbacked_bindings")
        and shared.isdisjoint([node, *node.all_input_nodes])
    )


def _key(node: Node) -> Hashable:
    """Equal for calls of an operator with the same arguments: 2 is not 2.0, nor 0.0 -0.0."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    arguments = (leaf if isinstance(leaf, Node) else repr(leaf) for leaf in leaves)
    return node.target, str(structure), tuple(arguments)


def _storages(node: Node) -> Iterator[int]:
    """The keys of the storages of its results."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor) and value.layout is torch.strided:
            yield storage_key(value)
