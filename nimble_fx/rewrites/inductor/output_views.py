"""Returns tensors that are no views for autograd where none were traced.

In training, the caller could not write to them otherwise: autograd refuses that for views that a
custom function returned; and what was detached would require gradients. Inductor's own function
returns none, because `reinterpret_tensor`, which the tasks replace by declared views, is none for
autograd.

Before: return as_strided(product, [2, 12], [12, 1]), where PyTorch traced an `index_add`
After:  return _unsafe_view(as_strided(product, [2, 12], [12, 1]), [2, 12])
"""

from typing import Any

import torch
from torch import SymInt, Tensor
from torch.fx import Graph, Node

from nimble_fx.ir.operator_aliasing import is_autograd_view
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten


def hide_output_views(before: Graph, after: Graph) -> None:
    """Hides from autograd that outputs are views, unless they were.

    Args:
        before: an ATen graph with fake tensors in `meta["val"]`.
        after: another with as many outputs; it is changed.
    """
    returned: Any = before.output_node().args[0]
    outputs: Any = after.output_node().args[0]
    pairs = zip(returned, outputs, strict=True)
    shown = {other for one, other in pairs if _is_view(other) and not _is_view(one)}
    hidden = {node: _hidden(after, node) for node in shown}
    after.output_node().args = ([hidden.get(each, each) for each in outputs],)


def _is_view(value: object) -> bool:
    """Whether an output is a view through which autograd would pass gradients."""
    if not isinstance(value, Node) or not isinstance(value.meta["val"], Tensor):
        return False
    targets = []
    while isinstance(value.target, OpOverload) and is_autograd_view(value.target):
        targets.append(value.target)
        value = value.all_input_nodes[0]
    return bool(targets) and _aten.detach.default not in targets


def _hidden(graph: Graph, view: Node) -> Node:
    with graph.inserting_before(graph.output_node()):
        sizes = [
            call(graph, view, _aten.sym_size.int, view, i) if isinstance(size, SymInt) else size
            for i, size in enumerate(view.meta["val"].shape)
        ]
        return call(graph, view, _aten._unsafe_view.default, view, sizes)
