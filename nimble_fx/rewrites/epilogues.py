"""Finds epilogues: operators that the kernel of the operator before them could compute."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import SymInt, Tensor
from torch.fx import Node

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of
from nimble_fx.torch_internals.symbolic import are_same_sizes

_Strides = Sequence[int | SymInt]

_aten = torch.ops.aten


def fusible_user(node: Node) -> Node | None:
    """The only reader of a result, if it returns a tensor of the same strides.

    None also if a tensor is written between the two: the fused operator might read it later than
    the reader does now.
    """
    if len(node.users) != 1:
        return None
    (user,) = node.users
    strides = [_strides(each) for each in (user, node)]
    is_same = None not in strides and are_same_sizes(*cast(list[_Strides], strides))
    return user if is_same and not _is_written_between(node, user) else None


def added_to(node: Node, user: Node) -> Node | None:
    """The tensor that an operator adds to a result of the same shape and type; None if none."""
    if user.target is not _aten.add.Tensor or user.kwargs.get("alpha", 1) != 1:
        return None
    operands = user.all_input_nodes
    if len(operands) != 2 or len(user.args) != 2:
        return None
    one, other = (operand.meta["val"] for operand in operands)
    if not are_same_sizes(one.shape, other.shape) or one.dtype != other.dtype:
        return None
    (added,) = (operand for operand in operands if operand is not node)
    return added


def _strides(node: Node) -> _Strides | None:
    value = node.meta.get("val")
    return value.stride() if isinstance(value, Tensor) else None


def _is_written_between(start: Node, end: Node) -> bool:
    node = start.next
    while node is not end:
        if isinstance(node.target, OpOverload) and schema_of(node.target).is_mutable:
            return True
        node = node.next
    return False
