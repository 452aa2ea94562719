"""Runs the rewrites that rely on weights that stay the same from call to call, in order."""

from collections.abc import Collection
from typing import Literal

from torch.fx import GraphModule, Node

from nimble_fx.rewrites.eliminate_common_subexpressions import eliminate_common_subexpressions
from nimble_fx.rewrites.folding.channels_last import channels_last
from nimble_fx.rewrites.folding.default_format_pools import default_format_pools
from nimble_fx.rewrites.folding.fold_batch_norm import fold_batch_norm
from nimble_fx.rewrites.folding.fuse_activations import fuse_activations
from nimble_fx.rewrites.folding.fuse_cudnn_relu import fuse_cudnn_relu
from nimble_fx.rewrites.folding.hoist_weights import (
    Hoisted,
    constant_weights,
    fixed_nodes,
    hoist_weights,
)
from nimble_fx.rewrites.folding.pack_matrices import pack_matrices
from nimble_fx.rewrites.folding.pointwise_products import pointwise_products
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.leaves import devices_of

Library = Literal["oneDNN", "cuDNN"]
"""The library of fused kernels: on a CPU, and on a GPU."""


def fold_weights(
    gm: GraphModule,
    static: Collection[str],
    library: Library | None,
    assume_finite: bool = False,
) -> Hoisted | None:
    """The rewritten graph, in two parts; None if no value in it depends only on weights.

    Requires: all tensors are on one device; otherwise it returns None.

    Args:
        gm: an ATen graph of inference, with fake tensors in `meta["val"]`; it is not changed.
        static: the names of the inputs that are parameters and buffers.
        library: the library of fused kernels; None for only PyTorch's own kernels.
        assume_finite: see `fuse_activations`.
    """
    if len(devices_of(gm.graph)) != 1:
        return None

    def fixed() -> Collection[Node]:
        return fixed_nodes(gm, static)

    gm = copied(gm)
    gm = fold_batch_norm(gm, constant_weights(gm, static))
    if library is not None:
        gm = channels_last(gm, fixed())
    if library == "cuDNN":
        gm = default_format_pools(gm)
        gm = fuse_cudnn_relu(gm, fixed())
    if library == "oneDNN":
        gm = pointwise_products(gm, fixed(), assume_finite)
        gm = fuse_activations(gm, fixed(), assume_finite)
        gm = pack_matrices(gm, fixed())
    gm = eliminate_common_subexpressions(gm)  # a weight that is used twice is converted once
    return hoist_weights(gm, static)
