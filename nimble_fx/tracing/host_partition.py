"""A graph of the CPU and a GPU is made two: what the CPU does first, and a program of the GPU.

The host's part runs operator by operator, as in eager. What the GPU takes of it is copied there,
and is an input of the program like any other.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.move_to_device import is_on_cpu, other_device

_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_TO_COPY = torch.ops.aten._to_copy.default

Place = tuple[bool, int]
"""Where a value comes from: whether that is the host's part, and which one it is there."""


@dataclass(frozen=True)
class Parts:
    """A graph in two parts.

    Attributes:
        host: takes what the graph takes; returns what is moved to the GPU, then outputs.
        device: the rest.
        inputs: where those of `device` come from, if not from the host's part then as inputs.
        outputs: where those of the graph come from, if not from the host's part then by `device`.
        moved: the inputs of the graph by those of `device` that are moved from them, by name.
    """

    host: GraphModule
    device: GraphModule
    inputs: Sequence[Place]
    outputs: Sequence[Place]
    moved: Mapping[str, str]

    def n_on_device(self, n: int) -> int:
        """How many of the graph's first `n` outputs come by `device`."""
        return sum(not by_host for by_host, _ in self.outputs[:n])

    def run(self, device: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Any]:
        """What runs the graph, by AOTAutograd's boxed convention; `device` runs that part."""

        def call(args: list[Any]) -> list[Any]:
            from_host = self.host(*args)
            given = [from_host[i] if by_host else args[i] for by_host, i in self.inputs]
            args.clear()
            results = device(given)
            return [from_host[i] if by_host else results[i] for by_host, i in self.outputs]

        call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return call


def split(gm: GraphModule) -> Parts | None:
    """The graph's two parts; None if it has one device, or if the CPU needs what the GPU makes.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, in which copies alone take tensors
            from the CPU to the other device (see `nimble_fx.tracing.move_to_device`).
    """
    if other_device(gm) is None:
        return None
    hosts = _hosts(gm)
    (output,) = gm.graph.find_nodes(op="output")
    returned = [v for v in output.args[0] if isinstance(v, Node) and is_on_cpu(v)]
    handed_over = [node for node in gm.graph.nodes if node in hosts and _is_handed_over(node)]
    at_host: dict[Any, Place] = {v: (True, i) for i, v in enumerate([*handed_over, *returned])}
    given = _inputs(gm, handed_over)
    results = [v for v in output.args[0] if v not in at_host]
    device = _device_part(gm, given, hosts, results)
    if device is None:
        return None
    own = {node: (False, i) for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    n_results = iter(range(len(results)))
    return Parts(
        host=_host_part(gm, hosts, [*handed_over, *returned]),
        device=device,
        inputs=[at_host.get(node) or own[node] for node in given],
        outputs=[at_host.get(v) or (False, next(n_results)) for v in output.args[0]],
        moved={n.name: n.args[0].name for n in handed_over if n.args[0] in own},
    )


def hand_over(value: Tensor, **kwargs: Any) -> Tensor:
    """A copy of a tensor of the CPU on another device, for which the host need not wait.

    From memory that is not pinned CUDA copies before it returns, so the host may write there then.
    """
    is_free_to_go_on = kwargs.pop("non_blocking", False) or not value.is_pinned()
    moved: Tensor = _TO_COPY(value, non_blocking=is_free_to_go_on, **kwargs)
    return moved


def _hosts(gm: GraphModule) -> set[Node]:
    """What the host can do before the device does anything."""
    hosts = set[Node]()
    for node in gm.graph.nodes:
        if hosts.issuperset(node.all_input_nodes) and _can_be_hosts(node):
            hosts.add(node)
    return hosts


def _can_be_hosts(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr") or _is_number(node) or _is_handed_over(node):
        return True
    is_atens = isinstance(node.target, OpOverload) and node.target.namespace == "aten"
    takes_no_others = all(is_on_cpu(arg) or _is_number(arg) for arg in node.all_input_nodes)
    return (is_atens or node.target is operator.getitem) and is_on_cpu(node) and takes_no_others


def _is_handed_over(node: Node) -> bool:
    """Whether it copies a tensor from the CPU to another device."""
    return node.target is _TO_COPY and not is_on_cpu(node) and is_on_cpu(node.all_input_nodes[0])


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), _NUMBERS)


def _inputs(gm: GraphModule, handed_over: Sequence[Node]) -> list[Node]:
    """What the device's part takes: inputs where they were, copies of them there too."""
    given: list[Node] = []
    for node in gm.graph.find_nodes(op="placeholder"):
        given += [c for c in handed_over if c.args[0] is node] if is_on_cpu(node) else [node]
    return given + [copy for copy in handed_over if copy not in given]


def _device_part(
    gm: GraphModule, given: Iterable[Node], hosts: set[Node], results: Sequence[Any]
) -> GraphModule | None:
    """What is not the host's, as a graph; None if it takes more of the host than it is given."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = node.meta
    for node in gm.graph.nodes:
        if node in copies or node.op in ("placeholder", "output"):
            continue
        if copies.keys() >= {*node.all_input_nodes} and not is_on_cpu(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif node not in hosts:
            return None
    if not copies.keys() >= {v for v in results if isinstance(v, Node)}:
        return None
    graph.output(tuple(copies.get(v, v) for v in results))
    return GraphModule(gm, graph)


def _host_part(gm: GraphModule, hosts: set[Node], returned: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        if node in hosts:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if _is_handed_over(node):
                copies[node].target = hand_over
    graph.output(tuple(copies[node] for node in returned))
    graph.eliminate_dead_code()
    return GraphModule(gm, graph)
