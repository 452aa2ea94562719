"""Gives outputs the strides that they were traced with, where these locate the same elements.

Inductor makes other strides than PyTorch in dimensions of size 1, and without elements.

Before: return empty_strided([1, 4, 16, 16], [1024, 256, 16, 1]), where PyTorch traced [2048, ...]
After: return as_strided(that, [1, 4, 16, 16], [2048, 256, 16, 1])
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.symbolic import are_known


def restride_outputs(before: Graph, after: Graph) -> None:
    """Restrides outputs of known sizes which differ only in strides that locate no element.

    Args:
        before: an ATen graph with fake tensors in `meta["val"]`.
        after: another with as many outputs; it is changed.
    """
    returned: Any = before.output_node().args[0]
    outputs: Any = after.output_node().args[0]
    views = dict[Node, Node]()
    for one, other in zip(returned, outputs, strict=True):
        if isinstance(one, Node) and isinstance(other, Node) and other not in views:
            views[other] = _restrided(after, one, other)
    after.output_node().args = ([views.get(x, x) if isinstance(x, Node) else x for x in outputs],)


def _restrided(graph: Graph, one: Node, other: Node) -> Node:
    """A view of an output with the strides of another; itself if no such view is needed."""
    if other.op == "placeholder":
        return other
    expected, value = one.meta["val"], other.meta["val"]
    if not isinstance(expected, Tensor) or not isinstance(value, Tensor):
        return other
    sizes = [*expected.shape, *expected.stride(), *value.shape, *value.stride()]
    if not are_known(sizes) or expected.shape != value.shape:
        return other
    pairs = zip(expected.shape, expected.stride(), value.stride(), strict=True)
    differing = [n for n, a, b in pairs if a != b]
    if not differing or (set(differing) != {1} and 0 not in expected.shape):
        return other
    with graph.inserting_before(graph.output_node()):
        view = torch.ops.aten.as_strided.default
        return call(graph, other, view, other, [*expected.shape], [*expected.stride()])
