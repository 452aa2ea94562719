"""Computes the gradient of normalized images with that of the weights, where PyTorch would crash.

Before 2.14, PyTorch's CPU kernel for images in the channels-last format writes the gradient of the
images although none is wanted, to memory that it has not allocated; in eager too.

Before: native_group_norm_backward(gradient, images, ..., [False, True, True])
After: native_group_norm_backward(gradient, images, ..., [True, True, True])
"""

import torch
from torch.fx import GraphModule

from nimble_fx.rewrites.new_nodes import fake_result

_CRASHES = torch.__version__ < "2.14"
_GRADIENTS = torch.ops.aten.native_group_norm_backward.default


def keep_gradients_of_images(gm: GraphModule) -> GraphModule:
    """Lets group normalizations compute the gradient of their images with those of weights.

    Requires: a PyTorch whose kernel crashes.
    Ensures: the same values of what the graph reads.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    if not _CRASHES:
        return gm
    for node in gm.graph.find_nodes(op="call_function", target=_GRADIENTS):
        *args, wanted = node.args
        if not wanted[0] and any(wanted):
            node.args = (*args, [True, *wanted[1:]])
            node.meta["val"] = fake_result(node)
    gm.recompile()
    return gm
