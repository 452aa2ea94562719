"""Lets oneDNN's convolutions on a CPU add a tensor, or apply an activation, themselves.

Before: y = convolution(x, weight, bias); z = sigmoid(y), or z = y + other.
After: z = one operator, `mkldnn::_convolution_pointwise`, which writes each number of the result
once. Without one of these after it, a convolution becomes that operator too, for its packed weight.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.onednn import CONVOLUTION, CONVOLUTION_ADD, is_available
from nimble_fx.torch_internals.operators import schema_of

_aten = torch.ops.aten
_ACTIVATIONS: dict[Any, str] = {
    _aten.sigmoid.default: "sigmoid",
    _aten.tanh.default: "tanh",
    _aten.silu.default: "swish",
    _aten.hardswish.default: "hardswish",
    _aten.leaky_relu.default: "leaky_relu",
}
"""oneDNN's names. Not relu, hardtanh, hardsigmoid and gelu: its make a number of NaN."""


def fuse_activations(gm: GraphModule, weights: Collection[Node]) -> GraphModule:
    """Replaces convolutions, with the operators after them, by oneDNN's.

    Requires: a convolution in two dimensions, not transposed, of float32, on a CPU, whose weight is
    among `weights`, and whose result is in the channels-last format; nothing else reads what is
    replaced. An addition's other operand has the same shape and type, and nothing is written in
    place between the two.
    Ensures: the same values up to rounding, of the same shapes and strides.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        weights: nodes that are computed outside of the calls.
    """
    if is_available():
        for convolution in gm.graph.find_nodes(
            op="call_function", target=_aten.convolution.default
        ):
            if _is_convertible(convolution, weights):
                _Fusion.of(convolution).replace(gm)
        gm.recompile()
    return gm


def _is_convertible(node: Node, weights: Collection[Node]) -> bool:
    weight = cast(Node, node.args[1])
    value: Tensor = node.meta["val"]
    is_image = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
    is_float = value.dtype == torch.float32 and value.device.type == "cpu"
    return is_image and is_float and not node.args[6] and weight in weights


@dataclass(frozen=True)
class _Fusion:
    """A convolution, and the addition or activation of its result, if there is one."""

    convolution: Node
    last: Node

    @staticmethod
    def of(convolution: Node) -> "_Fusion":
        """A convolution with what can be fused with it."""
        user = _only_user(convolution)
        if user is None or _strides(user) != _strides(convolution):
            return _Fusion(convolution, convolution)
        is_fused = user.target in _ACTIVATIONS or _is_fusible_addition(user, convolution)
        return _Fusion(convolution, user if is_fused else convolution)

    def replace(self, gm: GraphModule) -> None:
        """Makes the last of them the operator that does it all."""
        self.last.target, *args = self._call()
        self.last.args, self.last.kwargs = tuple(args), {}
        self.last.meta = self.last.meta | {"val": fake_result(self.last)}
        if self.last is not self.convolution:
            gm.graph.erase_node(self.convolution)

    def _call(self) -> tuple[Any, ...]:
        """The operator that does it all, and its arguments."""
        x, weight, bias, stride, padding, dilation, _, _, groups = self.convolution.args
        window = (padding, stride, dilation, groups)
        if self.last.target is _aten.add.Tensor:
            (other,) = (arg for arg in self.last.all_input_nodes if arg is not self.convolution)
            return CONVOLUTION_ADD, x, other, weight, bias, *window, "add", 1.0, None, [], None
        activation = _ACTIVATIONS.get(self.last.target, "none")
        numbers = [_negative_slope(self.last)] if activation == "leaky_relu" else []
        return CONVOLUTION, x, weight, bias, *window, activation, numbers, None


def _only_user(node: Node) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _strides(node: Node) -> object:
    value = node.meta.get("val")
    return value.stride() if isinstance(value, Tensor) else None


def _is_fusible_addition(user: Node, convolution: Node) -> bool:
    """Whether it adds the result of a convolution and something of the same type."""
    if user.target is not _aten.add.Tensor or user.kwargs.get("alpha", 1) != 1:
        return False
    operands = user.all_input_nodes
    if len(operands) != 2 or len(user.args) != 2:
        return False
    one, other = (operand.meta["val"] for operand in operands)
    is_same = one.shape == other.shape and one.dtype == other.dtype
    return is_same and not _is_written_between(convolution, user)


def _is_written_between(start: Node, end: Node) -> bool:
    node = start.next
    while node is not end:
        if isinstance(node.target, OpOverload) and schema_of(node.target).is_mutable:
            return True
        node = node.next
    return False


def _negative_slope(node: Node) -> float:
    slope: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
    return float(slope)
