"""Copies of the tensors that a call writes to, with the originals' strides."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx import Node

from nimble_fx.rewrites.new_nodes import call, fake_call
from nimble_fx.rewrites.reinplace.parts_of_memory import have_same_layout
from nimble_fx.rewrites.reinplace.written_views import Step, step_to_flat
from nimble_fx.torch_internals.symbolic import are_known

_aten = torch.ops.aten


def can_be_copied(value: Tensor) -> bool:
    """Whether a copy with the same strides can be made: it has no gaps, or known sizes."""
    return _has_no_gaps(value) or are_known((*value.shape, *value.stride()))


def copy_before(node: Node, original: Node) -> tuple[Node, Node]:
    """A copy at the graph's insertion point, and the node that reads the original.

    Args:
        node: the call that will write to the copy.
        original: a node whose fake tensor `can_be_copied`.
    """
    value: Tensor = original.meta["val"]
    flat = step_to_flat(value)
    if _has_no_gaps(value) or flat is None:
        copy = call(node.graph, node, _aten.clone.default, original)
        return copy, copy
    as_it_was = (_aten.as_strided.default, ([*value.shape], [*value.stride()]))
    steps = [flat, (_aten.clone.default, ()), as_it_was]
    first, _, copy = calls_before(node, original, steps)
    return copy, first


def calls_before(node: Node, tensor: Node, steps: Iterable[Step]) -> list[Node]:
    """Calls of operators at the graph's insertion point, each on the result of the last."""
    found = [tensor]
    for operator, arguments in steps:
        found.append(call(node.graph, node, operator, found[-1], *arguments))
    return found[1:]


def _has_no_gaps(value: Tensor) -> bool:
    """Whether a clone has the same strides."""
    return have_same_layout(fake_call(_aten.clone.default, value), value)
