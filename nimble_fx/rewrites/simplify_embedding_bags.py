"""Skips the results of embedding bags that only a backward reads.

Before: y = _embedding_bag(table, rows, offsets)[0], whose other results a backward needs.
After: y = _embedding_bag_forward_only(table, rows, offsets)[0].
"""

import torch
from torch.fx import GraphModule

from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.rewrites.results_read import is_only_first_read

_aten = torch.ops.aten


def simplify_embedding_bags(gm: GraphModule) -> GraphModule:
    """Replaces embedding bags of which only the first result is read.

    PyTorch does so itself for a table that needs no gradient, but not for a parameter under
    `torch.no_grad()`.

    Ensures: the same bits and errors.

    Args:
        gm: an ATen graph; it is changed and returned.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_aten._embedding_bag.default):
        if is_only_first_read(node):
            node.target = _aten._embedding_bag_forward_only.default
            node.meta = node.meta | {"val": fake_result(node)}  # some results have other sizes
    gm.recompile()
    return gm
