"""Restores nearest-neighbour upsampling, which PyTorch's tracer writes as a read by indices.

Before: y = _unsafe_index(x, [None, None, rows, columns]), with constants for rows and columns.
After: y = upsample_nearest2d(x, sizes), eager's own operator, which looks up no index and keeps the
channels-last format, to which the read is copied.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.graph_modules import erase_unused
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.constant_folding import plain_eager_mode

_aten = torch.ops.aten
_UPSAMPLE: Sequence[OpOverload] = (
    _aten.upsample_nearest1d.default,
    _aten.upsample_nearest2d.default,
    _aten.upsample_nearest3d.default,
)
"""By the number of dimensions, less one."""

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def restore_upsampling(gm: GraphModule) -> GraphModule:
    """Replaces reads by constant indices that are those of an upsampling.

    Requires: the indices are the ones that PyTorch's operator reads on a CPU.
    Ensures: the same bits, of the same shapes and strides.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]` and folded constants; it is changed and
            returned.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_aten._unsafe_index.Tensor):
        x, indices = cast(tuple[Node, list[Any]], node.args)
        sizes = _sizes(gm, x, indices)
        if sizes is not None:
            with gm.graph.inserting_before(node):
                upsampled = call(gm.graph, node, _UPSAMPLE[len(sizes) - 1], x, sizes)
            copies = [user for user in node.users if user.target is _aten.clone.default]
            for same in (node, *(copies if len(node.users) == 1 else ())):
                if same.meta["val"].stride() == upsampled.meta["val"].stride():
                    same.replace_all_uses_with(upsampled)
            erase_unused([upsampled, *copies, node, *filter(None, indices)])
    gm.recompile()
    return gm


def _sizes(gm: GraphModule, x: Node, indices: Sequence[Node | None]) -> list[int] | None:
    """The sizes that an image is upsampled to; None if the indices do something else."""
    image: Tensor = x.meta["val"]
    n_dims = image.dim() - 2
    is_image = image.dtype in _TYPES and 1 <= n_dims <= 3
    if not is_image or len(indices) != image.dim() or any(indices[:2]):
        return None
    sizes = list[int]()
    for i, (size, index) in enumerate(zip(image.shape[2:], indices[2:], strict=True)):
        if type(size) is not int or index is None or index.op != "get_attr":
            return None
        positions: Tensor = attrgetter(str(index.target))(gm)
        n = positions.numel()
        if positions.shape != (n, *[1] * (n_dims - 1 - i)) or not _are_nearest(positions, size):
            return None
        sizes.append(n)
    return sizes


def _are_nearest(positions: Tensor, size: int) -> bool:
    """Whether these are the positions that upsampling a row of a size reads."""
    if not (size and positions.numel()):
        return False  # an error in eager
    with plain_eager_mode():
        row = torch.arange(size, dtype=torch.float64).view(1, 1, size)
        expected = _aten.upsample_nearest1d.default(row, [len(positions)])
        return torch.equal(positions.cpu().flatten(), expected.flatten().long())
