"""Removes copies that the model only reads.

PyTorch traces `dropout` as a copy where it drops nothing: in `eval()`, and with `p=0`.

Before: y = clone(x); z = mm(y, w)
After:  z = mm(x, w)
"""

import operator
from collections.abc import Hashable
from collections.abc import Set as AbstractSet

import torch
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.rewrites.reinplace.parts_of_memory import have_same_layout, is_whole
from nimble_fx.rewrites.reinplace.reinplace_updates import PARTIAL_UPDATES
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.escape_analysis import (
    aliases,
    escaping_or_written,
    keeps_to_its_schema,
    storages,
)

_CLONE = torch.ops.aten.clone.default


def remove_copies(gm: GraphModule) -> GraphModule:
    """Lets the readers of copies read the originals.

    Requires: the graph allocates both. Neither is written, returned or passed to a custom operator,
    nor updated in part, which `reinplace_updates` would write in place; nor is a view of them. They
    have the same strides, and nothing else is in the original's memory.
    Ensures: the same bits.

    Cost: O(nodes + edges).

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    if not gm.graph.find_nodes(op="call_function", target=_CLONE):
        return gm
    shared = escaping_or_written(gm.graph) | _changing(gm.graph)
    gone: set[int] = set()
    for node in list(gm.graph.nodes):
        if node.target is _CLONE and _is_removable(node, shared):
            node.replace_all_uses_with(node.args[0])
            gone.update(storages(node))
            gm.graph.erase_node(node)
        elif not gone.isdisjoint(storages(node)):  # a view of a removed copy
            node.meta["val"] = fake_result(node)
    gm.recompile()
    return gm


def _changing(graph: Graph) -> set[Node]:
    """The nodes whose memory others may write to, or partial updates may.

    The caller may write to inputs between a forward and its backward, and a custom operator to its
    former results.
    """
    memories, written = aliases(graph), set[Hashable]()
    for node in graph.nodes:
        if node.target in PARTIAL_UPDATES:
            written |= memories[node.all_input_nodes[0]]
        elif not _is_allocated_here(node):
            written |= memories[node]
    return {node for node, memory in memories.items() if not written.isdisjoint(memory)}


def _is_allocated_here(node: Node) -> bool:
    """Whether nothing but the graph knows the memory of a node's results."""
    if isinstance(node.target, OpOverload):
        return keeps_to_its_schema(node.target)
    return node.target is operator.getitem


def _is_removable(node: Node, shared: AbstractSet[Node]) -> bool:
    copy, original = node.meta["val"], node.all_input_nodes[0].meta["val"]
    return (
        shared.isdisjoint([node, *node.all_input_nodes])
        and original.layout is torch.strided
        and have_same_layout(copy, original)
        and (copy.is_conj(), copy.is_neg()) == (original.is_conj(), original.is_neg())
        and is_whole(original)
    )
