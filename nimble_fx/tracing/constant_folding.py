"""What does not depend on a call is computed once, when a graph is compiled.

Models make themselves indices and masks in `forward`: `torch.tril_indices` of an interaction, the
`arange` of bags that each `nn.EmbeddingBag` makes, `torch.tensor([...])`.
"""

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.names import (
    DisableAutocast,
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    disable_modes,
    pytree,
)
from nimble_fx.torch_internals.operators import schema_of
from nimble_fx.tracing.exposed_memory import exposed

MAX_BYTES = 2**20
"""Larger results would cost more memory, for as long as the program lives, than they save time."""

Place = Callable[[torch.device], torch.device | None]
"""Where values of a device can be computed now; None if nowhere."""

_NOT_FROM_ARGUMENTS_ALONE = ("empty", "new_empty", "from_file")
"""What names of operators begin with whose result is what was in memory, or is in a file."""


def fold_constants(gm: GraphModule, place: Place) -> GraphModule:
    """The graph itself, changed: what depends on no input has become a constant, equal ones one.

    What the caller gets or somebody may write is made anew in each call (see `exposed`). An
    operator that raises stays, and raises in each call.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`.
        place: where to compute. For a device that is not here it may be another one, on which the
            constants' values are then, and not their fake tensors.
    """
    made: dict[Hashable, Node] = {}
    with eagerly():
        values = _values(gm, place)
        for node in [node for node in values if _is_needed(node, values)]:
            constant = _as_constant(gm, node, values[node], made)
            node.replace_all_uses_with(constant, lambda user: user not in values)
    for node in reversed(values):
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _values(gm: GraphModule, place: Place) -> dict[Node, Any]:
    """The values of nodes that need not be in the graph, in its order."""
    kept = exposed(gm.graph)
    values: dict[Node, Any] = {}
    for node in gm.graph.nodes:
        if _is_literal(node):
            values[node] = operator.attrgetter(node.target)(gm)
        elif node not in kept and _is_pure(node) and values.keys() >= {*node.all_input_nodes}:
            value = _computed(node, values, place)
            if value is not None:
                values[node] = value
    for node in list(reversed(values)):
        is_one_result = node.op == "call_function" and isinstance(values[node], Tensor)
        if not is_one_result and _is_needed(node, values):
            del values[node]
    return values


def _is_needed(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether something that stays in the graph uses it."""
    return any(user not in values for user in node.users)


def _is_literal(node: Node) -> bool:
    """Whether it is what `torch.tensor([1, 2])` is made from, which belongs to the graph alone."""
    copies = {user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users}
    return node.op == "get_attr" and copies == {True}


def _is_pure(node: Node) -> bool:
    """Whether it makes small tensors, the same each time from the same arguments."""
    target, made = node.target, _tensors(node.meta.get("val"))
    if target is not operator.getitem:
        if not isinstance(target, OpOverload) or target.namespace != "aten":
            return False
        if schema_of(target).is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
            return False
        if target.overloadpacket.__name__.startswith(_NOT_FROM_ARGUMENTS_ALONE):
            return False
    return bool(made) and all(map(_is_small, made))


def _is_small(fake: Tensor) -> bool:
    if fake.layout is not torch.strided:
        return False
    nbytes = fake.untyped_storage().nbytes()
    return type(nbytes) is int and nbytes <= MAX_BYTES


def _computed(node: Node, values: Mapping[Node, Any], place: Place) -> Any | None:
    """What a node makes; None where that raises, cannot be had now, or is not what was traced."""
    arguments = pytree.tree_map_only(Node, values.__getitem__, (node.args, node.kwargs))
    fakes = pytree.tree_leaves(node.meta["val"])
    named = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.device)]
    places = {device: place(device) for device in [*named, *(f.device for f in _tensors(fakes))]}
    if None in places.values():
        return None
    args, kwargs = pytree.tree_map_only(torch.device, places.__getitem__, arguments)
    try:
        value = node.target(*args, **kwargs)  # type: ignore[operator]  # call_function: callable
    except Exception:  # an operator's own: it stays in the graph, where calls will raise it
        return None
    leaves = pytree.tree_leaves(value)
    pairs = zip(leaves, fakes, strict=False)
    is_as_traced = len(leaves) == len(fakes) and all(_is_alike(x, f, places) for x, f in pairs)
    return value if is_as_traced else None


def _is_alike(value: Any, fake: Any, places: Mapping[torch.device, torch.device | None]) -> bool:
    """Whether a result is the plain tensor that was traced."""
    if type(value) is not Tensor or not isinstance(fake, FakeTensor):
        return False
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return False
    if value._is_zerotensor():
        return False
    expected = (fake.shape, fake.stride(), fake.dtype, places[fake.device])
    return expected == (value.shape, value.stride(), value.dtype, value.device)


def _as_constant(gm: GraphModule, node: Node, value: Tensor, made: dict[Hashable, Node]) -> Node:
    """The constant that stands for a node; one that was made for an equal value, if there is."""
    fake = node.meta["val"]
    n = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    flat = value.as_strided((n if value.numel() else 0,), (1,)).clone()
    here = flat.cpu()  # which waits: whoever calls, on whatever stream, finds it computed
    data = string_at(here.data_ptr(), here.nbytes)
    key = (fake.device, value.dtype, value.shape, value.stride(), data)
    if key in made:
        return made[key]
    name = f"{node.name}_constant"
    gm.register_buffer(name, flat.as_strided(value.shape, value.stride()), persistent=False)
    with gm.graph.inserting_before(node):
        constant = made[key] = gm.graph.get_attr(name)
    with fake.fake_mode:
        alone = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    constant.meta = node.meta | {"val": alone}
    return constant


@contextmanager
def eagerly() -> Iterator[None]:
    """Within, operators compute values: no modes of tracing or of the user, and no gradients."""
    with ExitStack() as stack:
        for context in (
            disable_modes(),
            torch.inference_mode(False),
            torch.no_grad(),
            DisableAutocast(),
            DisableTorchFunction(),
        ):
            stack.enter_context(context)
        yield


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]
