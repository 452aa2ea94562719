"""Corrects the types of the mean and deviation that normalizations of half precision return.

PyTorch's kernels return them in single precision if the weights are (see
`torch_internals.normalizations`). Its shape functions promise half precision, which Inductor's
kernels would then return to a backward of PyTorch's kernels, or expect from a forward of them.
"""

import operator
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.normalizations import (
    NORMALIZATIONS,
    STATISTICS,
    has_single_statistics,
    with_single_statistics,
)


def correct_types_of_statistics(gm: GraphModule) -> GraphModule:
    """Gives the fake tensors of statistics the type that PyTorch's kernels return.

    Requires: a normalization on the CPU of a tensor in half precision, with a weight or running
    statistics in single precision.
    Ensures: the same values; the fake tensors of its statistics are in single precision, and those
    of what is computed of these in the precision that follows.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, forward and backward together if it is
            trained; it is changed and returned.
    """
    for target in NORMALIZATIONS:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            operands = tensors_in([each.meta.get("val") for each in node.all_input_nodes])
            if has_single_statistics(target, operands):
                _correct(node)
    return gm


def _correct(node: Node) -> None:
    first: Any = node.meta["val"][0]
    with first.fake_mode:
        node.meta["val"] = with_single_statistics(node.meta["val"])
    for item in [user for user in node.users if user.target is operator.getitem]:
        item.meta["val"] = node.meta["val"][item.args[1]]
        if item.args[1] in STATISTICS:
            _correct_users(item)


def _correct_users(node: Node) -> None:
    """Corrects the type of what is computed of a value, as far as it changes."""
    for user in node.users:
        if isinstance(user.target, OpOverload) and isinstance(user.meta["val"], Tensor):
            result = fake_result(user)
            if is_view(user.target) or result.dtype != user.meta["val"].dtype:
                user.meta["val"] = result
                _correct_users(user)
