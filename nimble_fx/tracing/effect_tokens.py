"""Calls operators with side effects by themselves, without the tokens that put them in order.

AOTAutograd wraps a call that returns nothing to compute with, such as the check behind
`torch.linalg.inv`, so that passes over the graph keep it and its place. A task graph does that by
itself: such operators are ordered as in the program.

Before: token = prims._make_token()
        pair = with_effects(token, check, info)
        prims._sink_tokens([pair[0]])
After:  check(info)
"""

from operator import getitem
from typing import Any

from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.names import OpOverload, lookup
from nimble_fx.torch_internals.operators import schema_of

_with_effects = lookup("torch._higher_order_ops.effects.with_effects")
_TOKENS = {"prims::_make_token", "prims::_sink_tokens"}


def without_effect_tokens(gm: GraphModule) -> GraphModule:
    """Unwraps calls of operators; those of higher-order operators stay wrapped.

    Args:
        gm: an ATen graph; it is changed and returned.
    """
    wrapped = [node for node in gm.graph.nodes if node.target is _with_effects]
    if not all(map(_can_be_unwrapped, wrapped)):
        return gm
    for node in wrapped:
        _unwrap(node)
    for node in reversed(gm.graph.nodes):
        is_token = node in wrapped or (node.target is getitem and node.args[0] in wrapped)
        if is_token or _name(node) in _TOKENS:
            gm.graph.erase_node(node)
    return gm


def _can_be_unwrapped(node: Node) -> bool:
    is_operator = isinstance(node.args[1], OpOverload)
    return is_operator and all(user.target is getitem for user in node.users)


def _unwrap(node: Node) -> None:
    """Adds the call, and replaces its results; the token and the wrapper stay."""
    arguments: tuple[Any, ...] = node.args
    _, op, *args = arguments
    n_results, results = len(schema_of(op).returns), node.meta["val"][1:]
    with node.graph.inserting_before(node):
        call = node.graph.call_function(op, tuple(args), node.kwargs)
    call.meta = node.meta | {"val": {0: None, 1: results[0]}.get(n_results, tuple(results))}
    for user in list(node.users):
        index: Any = user.args[1]
        if index == 0:
            continue
        if n_results == 1:
            user.replace_all_uses_with(call)
        else:
            user.replace_input_with(node, call)
            user.update_arg(1, index - 1)


def _name(node: Node) -> str:
    return schema_of(node.target).name if isinstance(node.target, OpOverload) else ""
