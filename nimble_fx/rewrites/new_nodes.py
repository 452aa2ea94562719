"""Adds operator calls to an ATen graph, with the fake tensors that they return."""

from typing import Any

import torch
from torch.fx import Graph, Node

from nimble_fx.torch_internals.names import FakeTensorMode, OpOverload, pytree


def call(graph: Graph, like: Node, target: OpOverload, *args: Any, **kwargs: Any) -> Node:
    """Adds an operator call at the graph's insertion point.

    Args:
        graph: an ATen graph with fake tensors in `meta["val"]`.
        like: a node; the call is attributed to the same line of the user's code.
        target: the operator.
        *args: its positional arguments: nodes and literals.
        **kwargs: its keyword arguments.
    """
    name = target.overloadpacket.__name__ if isinstance(target, OpOverload) else None
    node = graph.create_node("call_function", target, args, kwargs, name)
    node.meta = {key: value for key, value in like.meta.items() if key != "tensor_meta"}
    node.meta["val"] = fake_result(node)
    return node


def without_gaps(graph: Graph, node: Node, like: Node) -> Node:
    """A node whose result is contiguous: itself, or a copy at the graph's insertion point.

    oneDNN's operators read a bias as if it were contiguous, whatever its stride; elementwise ones
    return strides in the order of their first argument's.
    """
    if node.meta["val"].is_contiguous():
        return node
    clone = torch.ops.aten.clone.default
    return call(graph, like, clone, node, memory_format=torch.contiguous_format)


def fake_result(node: Node, mode: FakeTensorMode | None = None) -> Any:
    """What an operator call returns for the fake tensors of its arguments.

    Args:
        node: the call.
        mode: the fake tensors' mode; None for that of the first fake tensor among the arguments.
    """
    return _fake_call(node.target, node.args, node.kwargs, mode)


def fake_call(target: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What an operator returns for the fake tensors of its arguments, at least one of them.

    Args:
        target: the operator.
        *args: nodes and literals.
        **kwargs: the same by keyword.
    """
    return _fake_call(target, args, kwargs, None)


def _fake_call(target: Any, args: Any, kwargs: Any, mode: FakeTensorMode | None) -> Any:
    args, kwargs = pytree.tree_map_only(Node, _value, (args, kwargs))
    tensors = (x for x in pytree.tree_leaves((args, kwargs)) if hasattr(x, "fake_mode"))
    with mode or next(tensors).fake_mode:
        return target(*args, **kwargs)


def _value(node: Node) -> Any:
    return node.meta["val"]
