"""Keeps what a checkpointed region drew, so that its backward draws no random numbers.

The backward of `torch.utils.checkpoint` computes a region again with the random numbers of the
forward. PyTorch's partitioner saves the generator's state for that, and wraps both calls in
higher-order operators, which are no tasks. Where only a mask is random, as in dropout, the forward
saves the mask instead, a byte an element; of other operators, the results that the backward reads.
Attention without dropout draws nothing, and the backward just computes it again. What only the
second draws read is no longer computed.

Before: forward   state, (y, mask) = run_and_save_rng_state(native_dropout, x, p, True)
        backward  y, mask = run_with_rng_state(state, native_dropout, x, p, True)
After:  forward   y, mask = native_dropout(x, p, True)
        backward  dropout_again = native_dropout_backward(x, mask, 1 / (1 - p))

Requires: the forward saves a state for each call, in the order of the backward's inputs, as
`torch._functorch.partitioners.functionalize_rng_ops` has it; what the backward reads are tensors.
Ensures: the same bits, and the generator in the same state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.names import OpOverload, lookup
from nimble_fx.torch_internals.operators import arguments_by_name, draws

_run_and_save = lookup("torch._prims.rng_prims.run_and_save_rng_state")
_run_again = lookup("torch._prims.rng_prims.run_with_rng_state")
_dropout = torch.ops.aten.native_dropout.default
_multiply_by_mask = torch.ops.aten.native_dropout_backward.default
_MASK = 1
"""The place of the mask among the results of a dropout."""


def keep_draws(forward: GraphModule, backward: GraphModule) -> None:
    """Replaces what the backward draws again by what the forward drew, in both graphs, in place."""
    repeated = list(_repeated_draws(forward.graph, backward.graph))
    if not repeated:
        return
    for draw in repeated:
        places = draw.places_to_save()
        if all(isinstance(draw.value(place), Tensor) for place in places):
            _keep(draw, places)
    backward.graph.eliminate_dead_code()
    forward.recompile()
    backward.recompile()


@dataclass(frozen=True)
class _RepeatedDraw:
    """Two wrapped calls of one operator.

    Attributes:
        first, results: the call in the forward, and the results of the operator.
        state: the generator's state, which the forward saves.
        saved_state, again: the state and the call in the backward.
    """

    first: Node
    results: Node
    state: Node
    saved_state: Node
    again: Node

    @property
    def op(self) -> OpOverload:
        """The operator."""
        return self.first.args[0]  # type: ignore[return-value]

    @property
    def draws(self) -> bool:
        """Whether its calls draw random numbers."""
        return draws(self.op, self.first.args[1:], self.first.kwargs)

    def value(self, place: int | None) -> Any:
        """The fake tensor, or number, in a place of the results."""
        value = self.results.meta["val"]
        return value if place is None else value[place]

    def reads(self) -> list[Node]:
        """What the backward reads of the results."""
        is_one = isinstance(self.value(None), Tensor)
        return [self.again] if is_one else list(self.again.users)

    def places_to_save(self) -> list[int | None]:
        """The places of the results that the backward cannot compute."""
        if not self.draws:
            return []
        return [_MASK] if self.op is _dropout else list(dict.fromkeys(map(_place, self.reads())))


def _repeated_draws(forward: Graph, backward: Graph) -> Iterator[_RepeatedDraw]:
    """The draws that the backward repeats; none if the graphs do not fit together."""
    states = [value for value in _outputs(forward) if _is_state(value)]
    inputs = backward.find_nodes(op="placeholder")
    saved_states = [(x, user) for x in inputs for user in x.users if _takes_state(user, x)]
    if len(states) == len(saved_states):
        for state, (saved_state, again) in zip(states, saved_states, strict=True):
            first = state.args[0]
            (results,) = [user for user in first.users if user.args[1] == 1]
            yield _RepeatedDraw(first, results, state, saved_state, again)


def _outputs(graph: Graph) -> Sequence[Any]:
    outputs: Sequence[Any] = graph.output_node().args[0]  # type: ignore[assignment]
    return outputs


def _is_state(value: Any) -> bool:
    if not isinstance(value, Node) or value.target is not getitem:
        return False
    wrapped: Any = value.args[0]
    return bool(wrapped.target is _run_and_save and value.args[1] == 0)


def _takes_state(node: Node, state: Node) -> bool:
    return node.target is _run_again and node.args[0] is state


def _place(result: Node) -> Any:
    return result.args[1] if result.target is getitem else None


def _keep(draw: _RepeatedDraw, places: Iterable[int | None]) -> None:
    plain = _unwrapped(draw.first, draw.op, draw.first.args[1:], draw.results.meta)
    draw.results.replace_all_uses_with(plain)
    saved = {place: _result(plain, place) for place in places}
    _save_instead(draw.state, saved.values())
    for node in (draw.state, draw.results, draw.first):
        node.graph.erase_node(node)

    if draw.draws:
        _read_saved(draw, plain, saved)
    else:
        again = _unwrapped(draw.again, draw.op, draw.again.args[2:], plain.meta)
        draw.again.replace_all_uses_with(again)
    for node in (draw.again, draw.saved_state):
        node.graph.erase_node(node)


def _unwrapped(wrapped: Node, op: OpOverload, args: Sequence[Any], meta: Mapping[str, Any]) -> Node:
    """A call of an operator, before the call that wraps it."""
    with wrapped.graph.inserting_before(wrapped):
        name = op.overloadpacket.__name__
        node = wrapped.graph.create_node("call_function", op, tuple(args), wrapped.kwargs, name)
    node.meta = dict(meta)
    return node


def _result(call: Node, place: int | None) -> Node:
    """A result of a call in the forward."""
    if place is None:
        return call
    for user in call.users:
        if user.target is getitem and user.args[1] == place:
            return user
    with call.graph.inserting_after(call):
        result = call.graph.call_function(getitem, (call, place))
    result.meta = call.meta | {"val": call.meta["val"][place]}
    return result


def _save_instead(state: Node, saved: Iterable[Node]) -> None:
    """Returns results from the forward in the place of a state."""
    output = state.graph.output_node()
    parts = [list(saved) if value is state else [value] for value in _outputs(state.graph)]
    output.args = (tuple(value for part in parts for value in part),)


def _read_saved(draw: _RepeatedDraw, plain: Node, saved: Mapping[int | None, Node]) -> None:
    """Lets the backward read what the forward saved, in the place of a state."""
    graph, inputs = draw.again.graph, {}
    for place, result in saved.items():
        with graph.inserting_before(draw.saved_state):
            inputs[place] = graph.placeholder(result.name)
        inputs[place].meta = dict(result.meta)
    for read in draw.reads():
        place = _place(read)
        with graph.inserting_before(read):
            value = inputs.get(place) or _dropped_again(draw, inputs[_MASK], plain)
        read.replace_all_uses_with(value)
        if read is not draw.again:
            graph.erase_node(read)


def _dropped_again(draw: _RepeatedDraw, mask: Node, like: Node) -> Node:
    """The result of a dropout by its mask: the same products as in the forward."""
    again = draw.again
    named = arguments_by_name(draw.op, again.args[2:], again.kwargs)
    scale = 1.0 if named["train"] is False else _scale(named["p"], draw.value(0))
    args = named["input"], mask, scale
    node = again.graph.create_node("call_function", _multiply_by_mask, args, {}, "dropout_again")
    node.meta = like.meta | {"val": fake_result(node)}
    return node


def _scale(p: float, dropped: Tensor) -> float:
    """By what a dropout multiplies: its kernel for the CPU rounds it to the type of elements."""
    scale = 0.0 if p == 1 else 1 / (1 - p)
    if not dropped.is_cpu:
        return scale
    with plain_eager_mode():
        return torch.tensor(scale, dtype=dropped.dtype, device="cpu").item()
