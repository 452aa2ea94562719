"""Calls the check behind `torch.linalg.inv` by itself, without the tokens that keep it in place.

AOTAutograd wraps calls with side effects, so that their order is kept. The check's only effect is
an error if a matrix is singular: a task graph never drops it, and it only has to follow the tasks
that it reads from. Other calls with effects, which need an order, stay wrapped.

Before: token = prims._make_token()
        pair = with_effects(token, _linalg_check_errors, info, ...)
        prims._sink_tokens([pair[0]])
After:  _linalg_check_errors(info, ...)
"""

from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.names import lookup

_with_effects = lookup("torch._higher_order_ops.effects.with_effects")
_make_token = lookup("torch.ops.prims._make_token.default")
_sink_tokens = lookup("torch.ops.prims._sink_tokens.default")
_check = torch.ops.aten._linalg_check_errors.default


def n_tokens(gm: GraphModule) -> int:
    """How many tokens a graph makes, which would otherwise be its first inputs."""
    return len(gm.graph.find_nodes(op="call_function", target=_make_token))


def without_effect_tokens(gm: GraphModule) -> GraphModule:
    """Unwraps the checks of a graph that has no other operators with effects.

    Args:
        gm: an ATen graph; it is changed and returned.
    """
    wrapped = gm.graph.find_nodes(op="call_function", target=_with_effects)
    if not all(node.args[1] is _check for node in wrapped):
        return gm
    for node in wrapped:
        _unwrap(node)
    for node in reversed(gm.graph.nodes):
        is_token = node.target is getitem and node.args[0] in wrapped
        if is_token or node in wrapped or node.target in (_make_token, _sink_tokens):
            gm.graph.erase_node(node)
    return gm


def _unwrap(node: Node) -> None:
    """Adds the call; the wrapper stays."""
    arguments: tuple[Any, ...] = node.args
    with node.graph.inserting_before(node):
        call = node.graph.call_function(_check, arguments[2:], node.kwargs)
    call.meta = node.meta | {"val": None}
