"""Corrects the types of the mean and deviation that normalizations of half precision return.

With weights in single precision, as under autocast, PyTorch's CPU kernels return these in single
precision, and their backward kernels take no other. PyTorch's shape functions promise half
precision, which Inductor's kernels would then return to a backward of PyTorch's, or expect.
"""

import operator
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import OpOverload

_aten = torch.ops.aten
_NORMALIZATIONS = (
    _aten._batch_norm_with_update.default,
    _aten._batch_norm_with_update_functional.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit_no_training.default,
    _aten.native_batch_norm.default,
    _aten.native_group_norm.default,
    _aten.native_layer_norm.default,
)
_STATISTICS = (1, 2)
"""Which of their results are the mean and the deviation."""

_HALF = (torch.float16, torch.bfloat16)


def correct_types_of_statistics(gm: GraphModule) -> GraphModule:
    """Gives the fake tensors of statistics the type that PyTorch's kernels return.

    Requires: a normalization on the CPU of a tensor in half precision, with a weight or running
    statistics in single precision.
    Ensures: the same values; the fake tensors of its statistics, and of their views, are in single
    precision.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, forward and backward together if it is
            trained; it is changed and returned.
    """
    for target in _NORMALIZATIONS:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            if _is_mixed(node):
                _correct(node)
    return gm


def _is_mixed(node: Node) -> bool:
    first, *others = tensors_in([each.meta.get("val") for each in node.all_input_nodes])
    is_half = first.device.type == "cpu" and first.dtype in _HALF
    return is_half and any(other.dtype == torch.float32 for other in others)


def _correct(node: Node) -> None:
    values: list[Tensor] = list(node.meta["val"])
    for place in _STATISTICS:
        with values[place].fake_mode:  # type: ignore[attr-defined]
            values[place] = torch.empty_like(values[place], dtype=torch.float32)
    node.meta["val"] = tuple(values)
    items = [user for user in node.users if user.target is operator.getitem]
    for item in items:
        item.meta["val"] = values[item.args[1]]  # type: ignore[index]
        if item.args[1] in _STATISTICS:
            _correct_views(item.users)


def _correct_views(users: Iterable[Node]) -> None:
    for view in users:
        if isinstance(view.target, OpOverload) and is_view(view.target):
            view.meta["val"] = fake_result(view)
            _correct_views(view.users)
