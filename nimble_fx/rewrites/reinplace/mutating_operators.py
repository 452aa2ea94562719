"""Calls custom operators that write to their arguments (`mutates_args`) as the user's code does.

AOTAutograd makes such a call functional: it wraps it in a higher-order operator, which no task can
call, and which copies each tensor before the call writes to it.

Before: pair = auto_functionalized_v2(push, row=x, _rows_base_index=0, _all_bases=[rows])
        new = pair[1]; copy_(rows, new), of an input rows
After:  new = clone(rows); push(new, x); copy_(rows, new)

`reinplace_updates` then removes the copies that make no difference.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.rewrites.reinplace.written_copies import (
    calls_before,
    can_be_copied,
    copy_before,
)
from nimble_fx.rewrites.reinplace.written_views import steps_to_view
from nimble_fx.torch_internals.auto_functionalized import (
    WRAPPER,
    AsStrided,
    Slice,
    View,
    WrappedCall,
    wrapped_call,
)
from nimble_fx.torch_internals.obstacles import OBSTACLE
from nimble_fx.torch_internals.operators import schema_of


def call_mutating_operators(graph: Graph) -> dict[Node, Node]:
    """Replaces wrapped calls by calls of the operators on copies.

    Requires: known sizes, where a tensor that is copied has gaps, or an argument is a view that is
    no slice of it. No view has an offset from the beginning of the memory (`leave_wrapped`).
    Ensures: the same bits and strides, and the fake tensors that the calls' results had.

    Args:
        graph: an ATen graph with fake tensors in `meta["val"]`; it is changed.

    Returns:
        The copies, each with the node that reads its original: a copy of a tensor with gaps takes
        several nodes.

    Cost: O(nodes + edges), and a clone on fake tensors for each tensor that is written.
    """
    copies: dict[Node, Node] = {}
    for node in graph.find_nodes(op="call_function", target=WRAPPER):
        wrapped = wrapped_call(node)
        if wrapped is None:
            continue
        obstacle = node.meta.get(OBSTACLE) or _obstacle(wrapped)
        if obstacle is not None:
            node.meta[OBSTACLE] = obstacle
            continue
        with graph.inserting_before(node):
            own = [copy_before(node, base) for base in wrapped.bases]
        _unwrap(node, wrapped, [copy for copy, _ in own])
        copies.update(own)
    return copies


def leave_wrapped(graph: Graph) -> None:
    """Marks the calls that take a view, which thus stay wrapped.

    To be called if the model calls `as_strided`: its offsets count from the beginning of the
    memory, those of other views from the beginning of the tensor, and the wrapper does not tell.
    """
    for node in graph.find_nodes(op="call_function", target=WRAPPER):
        wrapped = wrapped_call(node)
        views = [] if wrapped is None else list(wrapped.written.values())
        if any(isinstance(view, (AsStrided, Slice)) for each in views for view in _listed(each)):
            node.meta[OBSTACLE] = "it writes to a view, in a model that calls as_strided"


def _obstacle(wrapped: WrappedCall) -> str | None:
    """What keeps a call from being one on copies of the same strides, and on views of these."""
    values: list[Tensor] = [base.meta["val"] for base in wrapped.bases]
    if not all(map(can_be_copied, values)):
        return "it writes to a tensor of symbolic sizes with gaps"
    views = [view for each in wrapped.written.values() for view in _listed(each)]
    if any(view and steps_to_view(view, values[view.base_index]) is None for view in views):
        return "it writes to a view whose place in its base is not known"
    return None


def _unwrap(node: Node, wrapped: WrappedCall, copies: list[Node]) -> None:
    """Replaces the node by a call of its operator, and its results by the call's and the copies.

    The copies take over the fake tensors of the results that they replace, which share memory with
    views of those.
    """
    results, n = node.meta["val"], wrapped.n_results
    with node.graph.inserting_before(node):
        unwrapped = _call(node, wrapped, copies)
    is_single = len(schema_of(wrapped.operator).returns) <= 1
    unwrapped.meta = node.meta | {"val": results[0] if is_single else tuple(results[:n])}
    for copy, value in zip(copies, results[n:], strict=True):
        copy.meta["val"] = value
    for item in list(node.users):
        index: Any = item.args[1]
        if index >= n:
            item.replace_all_uses_with(copies[index - n])
        elif is_single:
            item.replace_all_uses_with(unwrapped)
        else:
            item.args = (unwrapped, index)
            continue
        node.graph.erase_node(item)
    node.graph.erase_node(node)


def _call(node: Node, wrapped: WrappedCall, copies: list[Node]) -> Node:
    """The operator's call, with views of the copies."""
    op = wrapped.operator

    def argument(name: str) -> Any:
        if name not in wrapped.written:
            return wrapped.others[name]
        views = wrapped.written[name]
        made = [_view(node, view, wrapped.bases, copies) for view in _listed(views)]
        return made if isinstance(views, list) else made[0]

    parameters = schema_of(op).arguments
    args = tuple(argument(each.name) for each in parameters if not each.kwarg_only)
    kwargs = {each.name: argument(each.name) for each in parameters if each.kwarg_only}
    name = op.overloadpacket.__name__
    return node.graph.create_node("call_function", op, args, kwargs, name)


def _listed(views: Any) -> list[View | None]:
    return views if isinstance(views, list) else [views]


def _view(
    node: Node, view: View | None, bases: Sequence[Node], copies: Sequence[Node]
) -> Node | None:
    """The view of a copy that a call takes."""
    if view is None:
        return None
    copy: Node = copies[view.base_index]
    steps = steps_to_view(view, bases[view.base_index].meta["val"]) or []
    return [copy, *calls_before(node, copy, steps)][-1]
