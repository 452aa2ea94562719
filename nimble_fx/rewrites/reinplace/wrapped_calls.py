"""Removes the wrappers with which AOTAutograd makes calls functional that write to arguments."""

from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.reinplace.mutating_operators import call_mutating_operators
from nimble_fx.rewrites.reinplace.triton_kernels import call_triton_kernels
from nimble_fx.torch_internals.auto_functionalized import WRAPPER
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.triton_calls import TRITON_WRAPPER

WRAPPERS = (WRAPPER, TRITON_WRAPPER)
"""The higher-order operators: of custom operators, and of Triton kernels."""


def unwrapped(gm: GraphModule) -> GraphModule:
    """The graph with such calls on copies; the graph itself if it has none."""
    if not wrapped_nodes(gm.graph):
        return gm
    gm = copied(gm)
    unwrap(gm.graph)
    gm.recompile()
    return gm


def unwrap(graph: Graph) -> dict[Node, Node]:
    """Replaces wrapped calls by calls on copies; returns these with what reads the originals."""
    return call_mutating_operators(graph) | call_triton_kernels(graph)


def wrapped_nodes(graph: Graph) -> list[Node]:
    """The wrapped calls."""
    found = [graph.find_nodes(op="call_function", target=each) for each in WRAPPERS]
    return [node for nodes in found for node in nodes]
