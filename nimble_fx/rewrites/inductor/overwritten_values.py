"""Keeps the value of an input that is overwritten before the value is written to another input.

Inductor replaces a copy of a whole input with the input itself, also where the copy is written to
another input after that one has been overwritten (`remove_noop_ops`, in PyTorch 2.11 to 2.15).

Before: old = clone(a); copy_(a, new); copy_(b, old)
After: old = clone(a); kept = nimble_kernels.clone(old); copy_(a, new); copy_(b, kept)
"""

import torch
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.inductor.opaque_operators import opaque
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten
_COPIES = {
    *(_aten.clone, _aten.copy, _aten._to_copy, _aten.lift_fresh_copy, _aten.cat, _aten.stack),
    *(_aten.repeat, _aten.slice_scatter, _aten.constant_pad_nd, _aten.pow),
    *(_aten.ceil, _aten.floor, _aten.round, _aten.trunc),
}
"""Operators that Inductor removes where they change nothing."""


def keep_overwritten_values(gm: GraphModule) -> GraphModule:
    """Copies each value that could be an overwritten input by an operator unknown to Inductor.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, whose inputs are written at its end;
            it is changed and returned.
    """
    overwritten = set[Node]()
    for write in gm.graph.find_nodes(op="call_function", target=_aten.copy_.default):
        target, value = write.args[:2]
        if isinstance(value, Node) and _may_be_one_of(value, overwritten):
            write.update_arg(1, _kept(gm, value))
        overwritten.add(target)
    gm.recompile()
    return gm


def _may_be_one_of(value: Node, inputs: set[Node]) -> bool:
    """Whether Inductor may take a value for one of some inputs, or a view of it."""
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        if node in inputs:
            return True
        if _may_be_removed(node):
            sources = [source for source in node.all_input_nodes if source not in seen]
            stack += sources
            seen.update(sources)
    return False


def _may_be_removed(node: Node) -> bool:
    op = node.target
    return isinstance(op, OpOverload) and (is_view(op) or op.overloadpacket in _COPIES)


def _kept(gm: GraphModule, value: Node) -> Node:
    """A copy of a value, before any input is written."""
    first = next(node for node in gm.graph.nodes if node.op == "call_function")
    place = value.next if value.op == "call_function" else first
    with gm.graph.inserting_before(place):
        kept = gm.graph.call_function(opaque(_aten.clone.default), (value,))
    kept.meta = value.meta | {"val": value.meta["val"].clone()}
    return kept
