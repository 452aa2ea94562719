"""What operators of a GPU take from the CPU is moved there by operators of their own.

PyTorch lets a GPU's operators take single numbers and indices from the CPU. It reads the numbers
on the host, so that a CUDA graph would have them for ever, and copies the indices in each call.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.names import pytree
from nimble_fx.tracing.exposed_memory import exposed

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
"""Operators that take a single number from the CPU, beside the elementwise ones."""

_COPY = {_aten.copy.default, _aten.copy_.default}
"""Operators that copy their second argument from wherever it is."""


def other_device(gm: GraphModule) -> torch.device | None:
    """The device on which the graph has tensors beside those on the CPU; None if there is not one.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`.
    """
    devices = {tensor.device for node in gm.graph.nodes for tensor in tensors(node)}
    others = {device for device in devices if device.type != "cpu"}
    return others.pop() if len(others) == 1 < len(devices) else None


def move_to_device(gm: GraphModule) -> GraphModule:
    """The graph itself, changed: operators of the other device take nothing from the CPU.

    That is as far as they would also take it from their own device: numbers, with the same rules
    of element types, and indices.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`.
    """
    device = other_device(gm)
    if device is None:
        return gm
    moved: dict[Node, Node] = {}
    written = exposed(gm.graph)
    for node in list(gm.graph.nodes):
        if {tensor.device for tensor in tensors(node)} != {device}:
            continue
        for value in _taken(node):
            if value not in moved or value in written:
                moved[value] = _moved(gm, value, device, node)
            node.replace_input_with(value, moved[value])
    gm.recompile()
    return gm


def is_on_cpu(node: Node) -> bool:
    """Whether it makes tensors, on the CPU alone."""
    return {tensor.device.type for tensor in tensors(node)} == {"cpu"}


def tensors(node: Node) -> list[Tensor]:
    """The fake tensors of what a node makes."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return [value for value in values if isinstance(value, Tensor)]


def _taken(node: Node) -> Iterator[Node]:
    """The arguments on the CPU that an operator would take from its own device too."""
    target, taken = node.target, list[Node]()
    if target in _TAKE_INDICES or target in _COPY:
        taken += _nodes(node.args[1])
    if target in _TAKE_NUMBERS or torch.Tag.pointwise in getattr(target, "tags", ()):
        taken += filter(_is_number, node.all_input_nodes)
    return (value for value in dict.fromkeys(taken) if is_on_cpu(value))


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 0


def _nodes(value: object) -> Iterable[Node]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Node)]


def _moved(gm: GraphModule, value: Node, device: torch.device, user: Node) -> Node:
    """A copy of a value on the device, in front of a user."""
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
