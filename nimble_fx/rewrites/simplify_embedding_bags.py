"""Computes of embedding bags what inference reads alone.

Before: y = _embedding_bag(table, rows, offsets)[0], whose other results a backward needs.
After: y = _embedding_bag_forward_only(table, rows, offsets)[0]; or y = embedding(table, rows), if
offsets are an arange, so that each bag has one row, as for features with one value.
"""

import operator
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.graph_modules import erase_unused
from nimble_fx.torch_internals.operators import named_arguments
from nimble_fx.tracing.constant_folding import plain_eager_mode

_aten = torch.ops.aten


def simplify_embedding_bags(gm: GraphModule) -> GraphModule:
    """Replaces embedding bags whose first result alone is read.

    Ensures: the same bits, of the same shapes and strides; but a negative zero of a table stays
    one, where the sum of a bag of one row is a positive zero.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]` and folded constants; it is changed and
            returned.
    """
    bags = (_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default)
    for node in [node for node in gm.graph.nodes if node.target in bags]:
        if all(user.target is operator.getitem and user.args[1] == 0 for user in node.users):
            _simplify(gm, node)
    gm.recompile()
    return gm


def _simplify(gm: GraphModule, bags: Node) -> None:
    forward_only = _aten._embedding_bag_forward_only.default
    values = named_arguments(forward_only, bags.args, bags.kwargs)
    if not _have_one_row_each(gm, values):
        bags.target = forward_only
        return
    with gm.graph.inserting_before(bags):
        rows = call(gm.graph, bags, _aten.embedding.default, values["weight"], values["indices"])
    for first in list(bags.users):
        first.replace_all_uses_with(rows)
        gm.graph.erase_node(first)
    erase_unused([bags, values["offsets"]])


def _have_one_row_each(gm: GraphModule, values: dict[str, Any]) -> bool:
    """Whether bags begin at constant offsets, one further each, and leave out or weigh no row."""
    offsets, (n,) = cast(Node, values["offsets"]), values["indices"].meta["val"].shape
    is_plain = values["per_sample_weights"] is None and values["padding_idx"] < 0
    if not is_plain or offsets.op != "get_attr" or type(n) is not int:
        return False
    starts: Tensor = attrgetter(str(offsets.target))(gm)
    with plain_eager_mode():
        return torch.equal(
            starts.cpu().long(), torch.arange(n + 1 if values["include_last_offset"] else n)
        )
