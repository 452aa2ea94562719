"""Gives views of images the memory format that PyTorch's shape functions promise.

PyTorch's kernels take the format from all strides, including those of dimensions of size 1, where
fake tensors have others than real ones. A kernel that gets another format than promised returns
other strides, or raises an error.

Before: y = view(transpose(x), [1, 64, 16, 16]), with the strides [64, 1, 1024, 64] on a device
After: the image of y, of which `unsqueeze` makes a batch with the strides [16384, 1, 1024, 64]
"""

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.layout import Layout
from nimble_fx.rewrites.promised_strides import strides_key
from nimble_fx.rewrites.restrided import restride
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.names import OpOverload, pytree
from nimble_fx.torch_internals.symbolic import NUMBERS, hint

_aten = torch.ops.aten


def keep_formats_of_views(gm: GraphModule) -> GraphModule:
    """Gives views the memory format that their fake tensors have.

    Requires: a view with a dimension of size 1, without gaps, or elementwise operators on such a
    view. To see the strides, these run on the device "meta", where PyTorch's C++ code computes
    them.
    Ensures: the same values; the memory format of a view that other operators read is that of its
    fake tensor, unless all of them only make images of a single pixel of it.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.

    Cost: a call without data for each such operator with other arguments.
    """
    others = dict[Node, Tensor]()
    known = dict[Hashable, Tensor | None]()
    for node in list(gm.graph.nodes):
        if not _may_differ(node, others):
            continue
        promised, key = Layout.of(node.meta["val"]), strides_key(node)
        if not others.keys().isdisjoint(node.all_input_nodes):
            found = _without_data(node, others)
        else:
            found = known[key] if key in known else _without_data(node, {})
            known[key] = found
        if promised is None or found is None or found.stride() == promised.strides:
            continue
        others[node] = found
        if promised.with_strides(found.stride()).format != promised.format:
            restride(gm.graph, node, promised, found.stride())
    gm.recompile()
    return gm


def _may_differ(node: Node, others: Mapping[Node, Tensor]) -> bool:
    """Whether an operator may return other strides than promised, in dimensions of size 1.

    Args:
        node: any node.
        others: earlier nodes that do, without data.
    """
    value, target = node.meta.get("val"), node.target
    if not isinstance(target, OpOverload) or not isinstance(value, Tensor):
        return False
    if value.layout is not torch.strided or not any(hint(n) == 1 for n in value.shape):
        return False
    is_elementwise = torch.Tag.pointwise in target.tags
    reads_other = not others.keys().isdisjoint(node.all_input_nodes)
    return is_view(target) or (is_elementwise and reads_other)


def _without_data(node: Node, others: Mapping[Node, Tensor]) -> Tensor | None:
    """What an operator returns on the device "meta"; None if it cannot run there."""

    def bare(leaf: Any) -> Any:
        value = leaf.meta.get("val") if isinstance(leaf, Node) else leaf
        if isinstance(value, Tensor):
            layout = Layout.of(value)
            return others.get(leaf, None if layout is None else layout.on("meta", value.dtype))
        return hint(value) if isinstance(value, NUMBERS) else value

    try:
        with plain_eager_mode():
            args, kwargs = pytree.tree_map(bare, (node.args, node.kwargs))
            found = node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # such as a size that depends on data
        return None
    return found if isinstance(found, Tensor) else None
