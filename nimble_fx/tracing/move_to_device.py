"""Inserts explicit copies of CPU tensors that operators of a GPU take.

PyTorch lets a GPU's operators take scalar tensors and indices from the CPU. It reads the scalars on
the host, so that a CUDA graph would replay the captured values, and copies the indices in each
call.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.leaves import devices_of, nodes_in, tensors_of
from nimble_fx.tracing.escape_analysis import escaping_or_written

_aten = torch.ops.aten
_TAKE_INDICES = {
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
    _aten._unsafe_index_put.default,
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
}
"""Operators whose second argument is a list of indices."""

_TAKE_NUMBERS = {
    _aten.fill.Tensor,
    _aten.fill_.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten.masked_fill.Tensor,
    _aten.masked_fill_.Tensor,
}
"""Operators that take a scalar tensor from the CPU, besides the elementwise ones."""

_COPY = {_aten.copy.default, _aten.copy_.default}
"""Operators that copy their second argument from any device."""


def other_device(gm: GraphModule) -> torch.device | None:
    """The one device besides the CPU, in a graph that uses both; else None.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`.
    """
    devices = devices_of(gm.graph)
    others = {device for device in devices if device.type != "cpu"}
    return others.pop() if len(others) == 1 < len(devices) else None


def move_to_device(gm: GraphModule) -> GraphModule:
    """Copies CPU operands of operators of the other device to that device first.

    Only where the result is the same: scalar tensors, with the same type promotion, and indices.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    device = other_device(gm)
    if device is None:
        return gm
    moved: dict[Node, Node] = {}
    written = escaping_or_written(gm.graph)
    for node in list(gm.graph.nodes):
        if {tensor.device for tensor in tensors_of(node)} != {device}:
            continue
        for value in _cpu_operands(node):
            if value not in moved or value in written:
                moved[value] = _moved(gm, value, device, node)
            node.replace_input_with(value, moved[value])
    gm.recompile()
    return gm


def is_on_cpu(node: Node) -> bool:
    """Whether it returns tensors, all on the CPU."""
    return {tensor.device.type for tensor in tensors_of(node)} == {"cpu"}


def _cpu_operands(node: Node) -> Iterator[Node]:
    """The arguments on the CPU that an operator would also take from its own device."""
    target, taken = node.target, list[Node]()
    if target in _TAKE_INDICES or target in _COPY:
        taken += nodes_in(node.args[1])
    if target in _TAKE_NUMBERS or torch.Tag.pointwise in getattr(target, "tags", ()):
        taken += filter(_is_scalar_tensor, node.all_input_nodes)
    return (value for value in dict.fromkeys(taken) if is_on_cpu(value))


def _is_scalar_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 0


def _moved(gm: GraphModule, value: Node, device: torch.device, user: Node) -> Node:
    """A new node before `user` that copies a value to the device."""
    fake = value.meta["val"]
    with gm.graph.inserting_before(user):
        copy = gm.graph.create_node(
            "call_function",
            _aten._to_copy.default,
            (value,),
            {"device": device},
            f"{value.name}_moved",
        )
    with fake.fake_mode:
        copy.meta = user.meta | {"val": torch.empty_like(fake, device=device)}
    return copy
