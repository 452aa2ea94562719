"""Moves computations that depend only on weights out of the calls of an inference graph.

Before: one graph that computes with its parameters in each call.
After: a graph of the weights, which runs when they change, and a graph of the calls, which takes
the results of the first as additional inputs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg

from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.tracing.constant_folding import follows_from_arguments
from nimble_fx.tracing.escape_analysis import escaping_or_written


@dataclass(frozen=True)
class Hoisted:
    """A graph in two parts.

    Attributes:
        weights: computes tensors from parameters and buffers.
        main: the rest; its last inputs are the results of `weights`.
        sources: the positions of the inputs of `weights` among the graph's inputs.
        kept: the positions of the other inputs of `main` among the graph's inputs.
        sources_by_result: for each result of `weights`, by its name as an input of `main`, the name
            of the largest parameter that it is computed from.
    """

    weights: GraphModule
    main: GraphModule
    sources: Sequence[int]
    kept: Sequence[int]
    sources_by_result: Mapping[str, str]


def hoist_weights(gm: GraphModule, static: Collection[str]) -> Hoisted | None:
    """The graph of the weights and the graph of the calls; None if there is nothing to hoist.

    Ensures: the two graphs together compute what the graph computes. Views of weights, which need
    no memory, stay in the graph of the calls; views of results are results too.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        static: the names of the inputs that are parameters and buffers.
    """
    fixed = fixed_nodes(gm, static)
    results, views = _needed_by_calls(fixed)
    if not results:
        return None
    (output,) = gm.graph.find_nodes(op="output")
    calls = {node for node in gm.graph.nodes if node not in fixed or node in views}
    return Hoisted(
        weights=_part(gm, _ancestors(results), (), results),
        main=_part(gm, calls, results, output.args[0]),
        sources=_positions(gm, _ancestors(results)),
        kept=_positions(gm, calls),
        sources_by_result={node.name: _largest_source(node).name for node in results},
    )


def constant_weights(gm: GraphModule, static: Collection[str]) -> set[Node]:
    """The parameters and buffers that the graph neither writes nor returns."""
    inputs = {node for node in gm.graph.find_nodes(op="placeholder") if node.name in static}
    return inputs - escaping_or_written(gm.graph)


def fixed_nodes(gm: GraphModule, static: Collection[str]) -> dict[Node, None]:
    """The nodes that are computed only from weights and constants, in the graph's order.

    Excludes nodes that the caller receives or that may be written (see `escaping_or_written`).

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`.
        static: the names of the inputs that are parameters and buffers.
    """
    fixed: dict[Node, None] = {}
    per_call = escaping_or_written(gm.graph)
    for node in gm.graph.nodes:
        is_weight = node.op == "placeholder" and node.name in static
        arguments = node.all_input_nodes
        is_computed = bool(arguments) and all(argument in fixed for argument in arguments)
        if node in per_call:
            continue
        if is_weight or node.op == "get_attr" or (is_computed and follows_from_arguments(node)):
            fixed[node] = None
    return fixed


def _needed_by_calls(fixed: Collection[Node]) -> tuple[list[Node], set[Node]]:
    """The fixed nodes whose results the calls need, and those that stay in the calls.

    The latter are weights and constants, and their views.
    """
    sources = [node.meta["val"] for node in fixed if node.op != "call_function"]
    theirs = set(map(storage_key, tensors_in(sources)))
    needed = {node for node in fixed if any(user not in fixed for user in node.users)}
    results, views = dict[Node, None](), set[Node]()
    for node in reversed(list(fixed)):
        if node not in needed:
            continue
        value = node.meta["val"]
        if isinstance(value, Tensor) and storage_key(value) not in theirs:
            results[node] = None
        else:
            views.add(node)
            needed.update(node.all_input_nodes)
    return list(reversed(results)), views


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all nodes that they are computed from."""
    found, stack = set[Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _part(
    gm: GraphModule, nodes: Collection[Node], inputs: Collection[Node], outputs: Any
) -> GraphModule:
    """A graph of some nodes; it takes other nodes as additional inputs after its own."""
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        if node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        elif node in nodes and node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(map_arg(outputs, copies.__getitem__))
    return GraphModule(gm, graph)


def _positions(gm: GraphModule, nodes: Collection[Node]) -> list[int]:
    """The positions of the graph's inputs that are in a set of nodes."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return [i for i, node in enumerate(inputs) if node in nodes]


def _largest_source(node: Node) -> Node:
    """The largest weight that a result is computed from (the last of equals); or the result."""
    sources = [each for each in _ancestors([node]) if each.op == "placeholder"]
    return max(sources, key=lambda each: (each.meta["val"].numel(), each), default=node)
