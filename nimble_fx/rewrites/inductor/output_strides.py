"""Gives outputs the strides that they were traced with, in dimensions of size 1.

There Inductor makes other strides than PyTorch, which locate the same elements.

Before: return empty_strided([1, 4, 16, 16], [1024, 256, 16, 1]), where PyTorch traced [2048, ...]
After: return as_strided(that, [1, 4, 16, 16], [2048, 256, 16, 1])
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.symbolic import are_known


def restride_outputs(before: Graph, after: Graph) -> None:
    """Restrides outputs of known sizes which differ only in strides of dimensions of size 1.

    Args:
        before: an ATen graph with fake tensors in `meta["val"]`.
        after: another with as many outputs; it is changed.
    """
    returned, output = before.output_node().args[0], after.output_node()
    made = dict[Any, Any]()
    for one, other in zip(cast(Any, returned), cast(Any, output.args[0]), strict=True):
        if other not in made:
            made[other] = _restrided(after, one, other)
    output.args = ([made[other] for other in cast(Any, output.args[0])],)


def _restrided(graph: Graph, one: Any, other: Any) -> Any:
    """A view of an output with the strides of another; itself if no such view is needed."""
    if not isinstance(one, Node) or not isinstance(other, Node) or other.op == "placeholder":
        return other
    expected, value = one.meta["val"], other.meta["val"]
    if not isinstance(expected, Tensor) or not isinstance(value, Tensor):
        return other
    sizes = [*expected.shape, *expected.stride(), *value.shape, *value.stride()]
    if not are_known(sizes) or expected.shape != value.shape:
        return other
    pairs = zip(expected.shape, expected.stride(), value.stride(), strict=True)
    differing = [n for n, a, b in pairs if a != b]
    if not differing or set(differing) != {1}:
        return other
    with graph.inserting_before(graph.output_node()):
        view = torch.ops.aten.as_strided.default
        return call(graph, other, view, other, [*expected.shape], [*expected.stride()])
