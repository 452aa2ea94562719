"""Fuses convolutions on a CPU with an addition and an activation after them (oneDNN).

Before: y = convolution(x, weight, bias); z = sigmoid(y), or z = y + other.
After: z = `mkldnn::_convolution_pointwise`, one operator, which writes each element of the result
once. A convolution without either also becomes that operator, because it takes a packed weight.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.epilogues import added_to, fusible_user
from nimble_fx.rewrites.folding.convolution import Convolution, convolutions_in_calls
from nimble_fx.rewrites.new_nodes import fake_result, without_gaps
from nimble_fx.torch_internals.kernels.onednn import CONVOLUTION, CONVOLUTION_ADD, is_available
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import arguments_by_name, schema_of
from nimble_fx.tracing.source_lines import fuse_lines

_aten = torch.ops.aten
_ACTIVATIONS: dict[Any, str] = {
    _aten.sigmoid.default: "sigmoid",
    _aten.tanh.default: "tanh",
    _aten.silu.default: "swish",
    _aten.hardswish.default: "hardswish",
    _aten.leaky_relu.default: "leaky_relu",
}
"""oneDNN's names of activations."""

_IF_FINITE: dict[Any, str] = {
    _aten.relu.default: "relu",
    _aten.hardtanh.default: "hardtanh",
    _aten.hardsigmoid.default: "hardsigmoid",
    _aten.gelu.default: "gelu",
}
"""Activations that replace NaN with a number in oneDNN; PyTorch's keep NaN."""


def fuse_activations(
    gm: GraphModule, fixed: Collection[Node], assume_finite: bool = False
) -> GraphModule:
    """Replaces convolutions, with the operators after them, by oneDNN's fused operator.

    Requires: a float32 convolution in two dimensions, not transposed, on a CPU, whose weight is
    among `fixed` and whose image is not, and whose result is in the channels-last format. Only
    the next fused operator reads each intermediate result. The other operand of an addition has the
    same shape and type, and no tensor is written in place between the convolution and the addition.
    Ensures: the same values up to rounding, of the same shapes and strides. A `hardswish` of values
    above 5.6e37, a sixth of the largest, is infinite in PyTorch's kernel, which overflows, and
    right in oneDNN's.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        fixed: nodes that are computed outside of the calls.
        assume_finite: whether to fuse activations that replace NaN with a number.
    """
    if is_available():
        for convolution in convolutions_in_calls(gm.graph, fixed):
            if _is_fusible(convolution):
                _Fusion.of(convolution, assume_finite).replace(gm)
        gm.recompile()
    return gm


def applies_activation(convolution: Node, assume_finite: bool) -> bool:
    """Whether oneDNN's operator for a convolution can apply the activation after it."""
    return _Fusion.of(convolution, assume_finite).activation is not None


def _is_fusible(node: Node) -> bool:
    value: Tensor = node.meta["val"]
    is_image = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
    is_float = value.dtype == torch.float32 and value.device.type == "cpu"
    return is_image and is_float and not Convolution.of(node).is_transposed


@dataclass(frozen=True)
class _Fusion:
    """A convolution, and the addition and the activation after it, if there are any."""

    convolution: Node
    addition: Node | None = None
    activation: Node | None = None

    @staticmethod
    def of(convolution: Node, assume_finite: bool) -> "_Fusion":
        """A convolution with the operators that can be fused with it."""
        activations = _ACTIVATIONS | (_IF_FINITE if assume_finite else {})
        user = fusible_user(convolution)
        if user is not None and added_to(convolution, user) is not None:
            after = fusible_user(user)
            is_relu = assume_finite and after is not None and after.target is _aten.relu.default
            return _Fusion(convolution, user, after if is_relu else None)
        if user is None or user.target not in activations:
            return _Fusion(convolution)
        is_fusible = _has_valid_numbers(user) and (assume_finite or not _is_relu(user))
        return _Fusion(convolution, None, user if is_fusible else None)

    def replace(self, gm: GraphModule) -> None:
        """Replaces them with the fused operator, in the place of the last one."""
        fused = [node for node in (self.convolution, self.addition, self.activation) if node]
        fuse_lines(fused[-1], fused)
        last = fused.pop()
        with gm.graph.inserting_before(last):
            last.target, *args = self._call(gm.graph)
        last.args, last.kwargs = tuple(args), {}
        last.meta = last.meta | {"val": fake_result(last)}
        for node in reversed(fused):
            gm.graph.erase_node(node)

    def _call(self, graph: Graph) -> tuple[Any, ...]:
        """The fused operator and its arguments."""
        of = Convolution.of(self.convolution)
        bias = of.bias and without_gaps(graph, of.bias, self.convolution)
        window = (of.padding, of.stride, of.dilation, of.n_groups)
        if self.addition is not None:
            other = added_to(self.convolution, self.addition)
            added: tuple[Any, ...] = ("add", 1.0, "relu" if self.activation else None, [], None)
            return CONVOLUTION_ADD, of.x, other, of.weight, bias, *window, *added
        return CONVOLUTION, of.x, of.weight, bias, *window, *_described(self.activation)


def _described(activation: Node | None) -> tuple[str, list[float], str | None]:
    """An activation as oneDNN takes it: its name, its parameters and its variant."""
    if activation is None:
        return "none", [], None
    values = _values(activation)
    match (_ACTIVATIONS | _IF_FINITE)[activation.target]:
        case "leaky_relu":
            return "leaky_relu", [float(values["negative_slope"])], None
        case "hardtanh":
            return "hardtanh", [float(values["min_val"]), float(values["max_val"])], None
        case "gelu":
            return "gelu", [], values["approximate"]
        case name:
            return name, [], None


def _has_valid_numbers(activation: Node) -> bool:
    """Whether oneDNN takes its parameters: all are constants, and limits are in order."""
    if len(activation.all_input_nodes) != 1:
        return False
    values = _values(activation)
    return "min_val" not in values or values["min_val"] <= values["max_val"]


def _is_relu(activation: Node) -> bool:
    """Whether it is relu under another name, for which oneDNN also has relu."""
    return bool(_values(activation).get("negative_slope") == 0)


def _values(node: Node) -> dict[str, Any]:
    """The arguments of an operator by name, defaults included."""
    op = cast(OpOverload, node.target)
    parameters = schema_of(op).arguments
    defaults = {p.name: p.default_value for p in parameters if p.has_default_value()}
    return defaults | arguments_by_name(op, node.args, node.kwargs)
