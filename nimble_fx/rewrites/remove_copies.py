"""Removes copies that the model only reads.

PyTorch traces `dropout` as a copy where it drops nothing: in `eval()`, and with `p=0`.

Before: y = clone(x); z = mm(y, w)
After:  z = mm(x, w)
"""

from collections.abc import Set as AbstractSet

import torch
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.rewrites.reinplace.parts_of_memory import have_same_layout, is_whole
from nimble_fx.rewrites.reinplace.reinplace_updates import PARTIAL_UPDATES
from nimble_fx.tracing.escape_analysis import escaping_or_written, storages

_CLONE = torch.ops.aten.clone.default


def remove_copies(gm: GraphModule) -> GraphModule:
    """Lets the readers of copies read the originals.

    Requires: neither the copy nor the original is written, returned or passed to a custom operator,
    nor updated in part, which `reinplace_updates` would write in place; nor is a view of them. They
    have the same strides, and nothing else is in the original's memory.
    Ensures: the same bits, and no more memory at any time.

    Cost: O(nodes + edges).

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    if not gm.graph.find_nodes(op="call_function", target=_CLONE):
        return gm
    shared = escaping_or_written(gm.graph) | _updated(gm.graph)
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


def _updated(graph: Graph) -> set[Node]:
    """The nodes whose memory partial updates may be written to."""
    updates = (node for node in graph.nodes if node.target in PARTIAL_UPDATES)
    written = {key for node in updates for key in storages(node.all_input_nodes[0])}
    return {node for node in graph.nodes if not written.isdisjoint(storages(node))}


def _is_removable(node: Node, shared: AbstractSet[Node]) -> bool:
    copy, original = node.meta["val"], node.all_input_nodes[0].meta["val"]
    return (
        shared.isdisjoint([node, *node.all_input_nodes])
        and original.layout is torch.strided
        and have_same_layout(copy, original)
        and is_whole(original)
    )
