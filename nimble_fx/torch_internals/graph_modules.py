"""Graph modules of torch.fx, apart from their graphs."""

from collections.abc import Callable
from operator import attrgetter
from types import MethodType, SimpleNamespace
from typing import Any

from torch.fx import Graph, GraphModule

from nimble_fx.torch_internals.names import lookup

_force_recompile = lookup("torch.fx._lazy_graph_module._LazyGraphModule.force_recompile")


def function_of(gm: GraphModule) -> Callable[..., Any]:
    """The code of a graph module as a function that keeps its tensors alive, but not its graph.

    The graph of a large model, with a fake tensor and a stack trace for each node, can take a
    hundred megabytes.
    """
    _force_recompile(gm)  # its code may not be generated yet
    names = {node.target.partition(".")[0] for node in gm.graph.find_nodes(op="get_attr")}
    attributes = SimpleNamespace(**{name: attrgetter(name)(gm) for name in names})
    return MethodType(type(gm).forward, attributes)


def copied(gm: GraphModule) -> GraphModule:
    """A graph module with a graph of its own, over the same tensors."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return GraphModule(gm, graph)


def calls(gm: GraphModule, name: str) -> bool:
    """Whether a graph, or one inside of it, calls a function, method or operator of that name."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, GraphModule)]
    return any(_name(node.target) == name for graph in graphs for node in graph.nodes)


def _name(target: object) -> str:
    return str(getattr(target, "__name__", target)).partition(".")[0]
