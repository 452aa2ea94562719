"""Lets oneDNN's convolutions on a CPU add a tensor and apply an activation themselves.

Before: y = convolution(x, weight, bias); z = relu(y + other).
After: z = one operator, `mkldnn::_convolution_pointwise`, which reads and writes each number of the
result once. The addition, the activation or both may be missing; then it is the operator for the
rest, which takes a packed weight.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.onednn import CONVOLUTION, CONVOLUTION_ADD, is_available
from nimble_fx.torch_internals.operators import schema_of

_aten = torch.ops.aten
_Epilogue = tuple[str, list[float], str | None]
"""An activation as oneDNN takes it: its name, its numbers, and which variant of it."""

_RELU = _aten.relu.default
_ACTIVATIONS: dict[Any, Callable[[Node], _Epilogue]] = {
    _RELU: lambda node: ("relu", [], None),
    _aten.sigmoid.default: lambda node: ("sigmoid", [], None),
    _aten.tanh.default: lambda node: ("tanh", [], None),
    _aten.silu.default: lambda node: ("swish", [], None),
    _aten.hardswish.default: lambda node: ("hardswish", [], None),
    _aten.hardsigmoid.default: lambda node: ("hardsigmoid", [], None),
    _aten.hardtanh.default: lambda node: ("hardtanh", _numbers(node, "min_val", "max_val"), None),
    _aten.leaky_relu.default: lambda node: ("leaky_relu", _numbers(node, "negative_slope"), None),
    _aten.gelu.default: lambda node: ("gelu", [], _argument(node, "approximate")),
}


def fuse_activations(gm: GraphModule, weights: Collection[Node]) -> GraphModule:
    """Replaces convolutions, with the operators after them, by oneDNN's.

    Requires: a convolution in two dimensions, not transposed, of float32, on a CPU, whose weight is
    among `weights`; nothing else reads what is replaced. An addition's other operand has the same
    shape and type, and nothing is written in place between the two.
    Ensures: the same values up to rounding, of the same shapes, in the channels-last format.

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
    """A convolution, the addition of its result and the activation of that; each may be missing."""

    convolution: Node
    addition: Node | None
    activation: Node | None

    @staticmethod
    def of(convolution: Node) -> "_Fusion":
        """A convolution with what can be fused with it."""
        user = _only_user(convolution)
        if user is not None and user.target in _ACTIVATIONS:
            return _Fusion(convolution, None, user)
        if user is None or not _is_fusible_addition(user, convolution):
            return _Fusion(convolution, None, None)
        after = _only_user(user)
        return _Fusion(convolution, user, after if after and after.target is _RELU else None)

    def replace(self, gm: GraphModule) -> None:
        """Writes the operator that does it all, in the place of the last but the activation."""
        replaced = [node for node in (self.activation, self.addition, self.convolution) if node]
        with gm.graph.inserting_before(self.addition or self.convolution):
            fused = self._added(gm) if self.addition else self._alone(gm)
        replaced[0].replace_all_uses_with(fused)
        for node in replaced:
            gm.graph.erase_node(node)

    def _alone(self, gm: GraphModule) -> Node:
        x, weight, bias, *_ = self.convolution.args
        epilogue = self._epilogue or ("none", [], None)
        args = (x, weight, bias, *self._window, *epilogue)
        return call(gm.graph, self.activation or self.convolution, CONVOLUTION, *args)

    def _added(self, gm: GraphModule) -> Node:
        addition = cast(Node, self.addition)
        (other,) = [arg for arg in addition.all_input_nodes if arg is not self.convolution]
        x, weight, bias, *_ = self.convolution.args
        epilogue = self._epilogue or (None, [], None)
        args = (x, other, weight, bias, *self._window, "add", 1.0, *epilogue)
        return call(gm.graph, self.activation or addition, CONVOLUTION_ADD, *args)

    @property
    def _window(self) -> tuple[Any, ...]:
        """Padding, stride, dilation and groups."""
        _, _, _, stride, padding, dilation, _, _, groups = self.convolution.args
        return padding, stride, dilation, groups

    @property
    def _epilogue(self) -> _Epilogue | None:
        last = self.activation
        return None if last is None else _ACTIVATIONS[last.target](last)


def _only_user(node: Node) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


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


def _argument(node: Node, name: str) -> Any:
    """An argument of an operator call, by position, by name or by default."""
    for i, argument in enumerate(schema_of(cast(OpOverload, node.target)).arguments):
        if argument.name == name:
            given = node.args[i] if i < len(node.args) else node.kwargs.get(name)
            return argument.default_value if given is None else given
    raise KeyError(name)


def _numbers(node: Node, *names: str) -> list[float]:
    return [float(_argument(node, name)) for name in names]
