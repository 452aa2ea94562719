"""Constant folding: computes operators that depend on no input once, at compile time.

Models create indices and masks in `forward`: `torch.tril_indices` of an interaction, the `arange`
of bags in each `nn.EmbeddingBag`, `torch.tensor([...])`.
"""

import operator
from collections.abc import Callable, Hashable, Mapping
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.ir.symbolic_sizes import extent
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import FakeTensor, OpOverload, pytree
from nimble_fx.torch_internals.operators import schema_of
from nimble_fx.tracing.escape_analysis import escaping_or_written

MAX_BYTES = 2**20
"""Larger constants are not worth their memory, which they use while the program lives."""

Place = Callable[[torch.device], torch.device | None]
"""Maps a device to the one that computes its constants now; None if there is none."""

_UNINITIALIZED_OR_FROM_FILE = ("empty", "new_empty", "from_file")
"""Prefixes of operators whose results do not only depend on their arguments."""


def fold_constants(gm: GraphModule, place: Place) -> GraphModule:
    """Replaces operators that depend on no input with constants, equal ones with the same.

    Values that the caller receives or that may be written are computed in each call (see
    `escaping_or_written`). An operator that raises stays, and raises in each call.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        place: the device to compute on. For a device that this machine lacks it may be another one,
            which then has the constants' values; their fake tensors keep the device.
    """
    constants: dict[Hashable, Node] = {}
    with plain_eager_mode():
        values = _values(gm, place)
        for node in [node for node in values if _is_needed(node, values)]:
            constant = _as_constant(gm, node, values[node], constants)
            node.replace_all_uses_with(constant, lambda user: user not in values)
    for node in reversed(values):
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _values(gm: GraphModule, place: Place) -> dict[Node, Any]:
    """The values of the nodes that can be removed from the graph, in its order."""
    computed_per_call = escaping_or_written(gm.graph)
    values: dict[Node, Any] = {}
    for node in gm.graph.nodes:
        if _is_literal(node):
            values[node] = operator.attrgetter(node.target)(gm)
        elif node in computed_per_call or not _is_pure(node):
            continue
        elif values.keys() >= {*node.all_input_nodes}:
            value = _computed(node, values, place)
            if value is not None:
                values[node] = value
    for node in list(reversed(values)):
        is_one_result = node.op == "call_function" and isinstance(values[node], Tensor)
        if not is_one_result and _is_needed(node, values):
            del values[node]
    return values


def _is_needed(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether a node that stays in the graph uses it."""
    return any(user not in values for user in node.users)


def _is_literal(node: Node) -> bool:
    """Whether it is the literal of a `torch.tensor([1, 2])`, which only the graph refers to."""
    copies = {user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users}
    return node.op == "get_attr" and copies == {True}


def _is_pure(node: Node) -> bool:
    """Whether it returns small tensors that only depend on its arguments."""
    results = tensors_in(node.meta.get("val"))
    return follows_from_arguments(node) and bool(results) and all(map(_is_small, results))


def follows_from_arguments(node: Node) -> bool:
    """Whether an operator's results only depend on its arguments, and it has no other effects."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    schema = schema_of(target)
    if schema.is_mutable or not schema.returns or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return not target.overloadpacket.__name__.startswith(_UNINITIALIZED_OR_FROM_FILE)


def _is_small(fake: Tensor) -> bool:
    if fake.layout is not torch.strided:
        return False
    nbytes = fake.untyped_storage().nbytes()
    return type(nbytes) is int and nbytes <= MAX_BYTES


def _computed(node: Node, values: Mapping[Node, Any], place: Place) -> Any | None:
    """A node's value; None if it raises, has no device to run on, or differs from the trace."""
    arguments = pytree.tree_map_only(Node, values.__getitem__, (node.args, node.kwargs))
    fakes = pytree.tree_leaves(node.meta["val"])
    named = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.device)]
    places = {device: place(device) for device in [*named, *(f.device for f in tensors_in(fakes))]}
    if None in places.values():
        return None
    args, kwargs = pytree.tree_map_only(torch.device, places.__getitem__, arguments)
    try:
        value = node.target(*args, **kwargs)  # type: ignore[operator]  # call_function: callable
    except Exception:  # the operator's own error: it stays in the graph, where calls raise it
        return None
    value = pytree.tree_map_only(Tensor, _without_math_bits, value)
    leaves = pytree.tree_leaves(value)
    pairs = zip(leaves, fakes, strict=False)
    is_as_traced = len(leaves) == len(fakes) and all(_is_alike(x, f, places) for x, f in pairs)
    return value if is_as_traced else None


def _without_math_bits(value: Tensor) -> Tensor:
    """The tensor with its conjugation or negation computed, as `_as_constant` reads its memory."""
    return value.resolve_conj().resolve_neg() if value.layout is torch.strided else value


def _is_alike(value: Any, fake: Any, places: Mapping[torch.device, torch.device | None]) -> bool:
    """Whether a result is a plain tensor with the traced shape, strides, dtype and device."""
    if type(value) is not Tensor or not isinstance(fake, FakeTensor):
        return False
    if value.layout is not torch.strided:
        return False
    expected = (fake.shape, fake.stride(), fake.dtype, places[fake.device])
    return expected == (value.shape, value.stride(), value.dtype, value.device)


def _as_constant(
    gm: GraphModule, node: Node, value: Tensor, constants: dict[Hashable, Node]
) -> Node:
    """The constant that replaces a node: an existing one of equal value, or a new one."""
    fake = node.meta["val"]
    flat = value.as_strided((extent(value.shape, value.stride()),), (1,)).clone()
    on_cpu = flat.cpu()  # synchronizes, so that calls on any stream find it computed
    data = string_at(on_cpu.data_ptr(), on_cpu.nbytes)
    key = (fake.device, value.dtype, value.shape, value.stride(), data)
    if key in constants:
        return constants[key]
    name = f"{node.name}_constant"
    gm.register_buffer(name, flat.as_strided(value.shape, value.stride()), persistent=False)
    with gm.graph.inserting_before(node):
        constant = constants[key] = gm.graph.get_attr(name)
    with fake.fake_mode:
        own = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    constant.meta = node.meta | {"val": own}
    return constant
