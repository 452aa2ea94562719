"""Partitions a graph of the CPU and a GPU into a host part, which runs first, and a device part.

The host part runs operator by operator, as in eager. Its results that the GPU uses are copied
there, and are inputs of the device part.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.graph_modules import function_of
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.symbolic import NUMBERS
from nimble_fx.tracing.move_to_device import is_on_cpu, other_device

_TO_COPY = torch.ops.aten._to_copy.default


class Supplier(NamedTuple):
    """Which part supplies a value, and its position among that part's values."""

    by_host: bool
    position: int


@dataclass(frozen=True)
class Partition:
    """A graph in two parts.

    Attributes:
        host: takes the graph's inputs; returns the values copied to the GPU, then outputs.
        device: the rest.
        inputs: what supplies each input of `device`: a result of `host`, or an input of the graph.
        outputs: what supplies each output of the graph: a result of `host`, or of `device`.
        moved: the names of inputs of the graph, by the inputs of `device` that are their copies.
    """

    host: GraphModule
    device: GraphModule
    inputs: Sequence[Supplier]
    outputs: Sequence[Supplier]
    moved: Mapping[str, str]

    def n_on_device(self, n: int) -> int:
        """How many of the graph's first `n` outputs the device part returns."""
        return sum(not by_host for by_host, _ in self.outputs[:n])

    def run(self, device: Boxed) -> Boxed:
        """A function that runs both parts, by AOTAutograd's boxed convention.

        Args:
            device: runs the device part.
        """
        host, suppliers, outputs = function_of(self.host), self.inputs, self.outputs

        @boxed
        def call(args: list[Any]) -> list[Any]:
            from_host = host(*args)
            inputs = [from_host[i] if by_host else args[i] for by_host, i in suppliers]
            args.clear()
            results = device(inputs)
            return [from_host[i] if by_host else results[i] for by_host, i in outputs]

        return call


def split(gm: GraphModule) -> Partition | None:
    """The graph's two parts; None if it has one device, or if the CPU uses results of the GPU.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`, in which only copies take tensors from
            the CPU to the other device (see `nimble_fx.tracing.move_to_device`).
    """
    if other_device(gm) is None:
        return None
    on_host = _host_nodes(gm)
    (output,) = gm.graph.find_nodes(op="output")
    returned = [v for v in output.args[0] if isinstance(v, Node) and is_on_cpu(v)]
    copies = [node for node in gm.graph.nodes if node in on_host and _is_copy_to_device(node)]
    results_of_host = enumerate([*copies, *returned])
    from_host: dict[Any, Supplier] = {v: Supplier(True, i) for i, v in results_of_host}
    inputs = _device_inputs(gm, copies)
    results = [v for v in output.args[0] if v not in from_host]
    device = _device_part(gm, inputs, on_host, results)
    if device is None:
        return None
    inputs_of_graph = enumerate(gm.graph.find_nodes(op="placeholder"))
    own = {node: Supplier(False, i) for i, node in inputs_of_graph}
    n_results = iter(range(len(results)))
    return Partition(
        host=_host_part(gm, on_host, [*copies, *returned]),
        device=device,
        inputs=[from_host.get(node) or own[node] for node in inputs],
        outputs=[from_host.get(v) or Supplier(False, next(n_results)) for v in output.args[0]],
        moved={n.name: n.args[0].name for n in copies if n.args[0] in own},
    )


def copy_to_device(value: Tensor, **kwargs: Any) -> Tensor:
    """A copy of a CPU tensor on another device; the host does not wait if that is safe.

    From pageable memory CUDA copies before it returns, so the host may write there afterwards.
    """
    need_not_wait = kwargs.pop("non_blocking", False) or not value.is_pinned()
    moved: Tensor = _TO_COPY(value, non_blocking=need_not_wait, **kwargs)
    return moved


def _host_nodes(gm: GraphModule) -> set[Node]:
    """The nodes that the host can run before the device runs anything."""
    on_host = set[Node]()
    for node in gm.graph.nodes:
        if on_host.issuperset(node.all_input_nodes) and _can_run_on_host(node):
            on_host.add(node)
    return on_host


def _can_run_on_host(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr") or _is_number(node) or _is_copy_to_device(node):
        return True
    is_aten = isinstance(node.target, OpOverload) and node.target.namespace == "aten"
    takes_no_others = all(is_on_cpu(arg) or _is_number(arg) for arg in node.all_input_nodes)
    return (is_aten or node.target is operator.getitem) and is_on_cpu(node) and takes_no_others


def _is_copy_to_device(node: Node) -> bool:
    """Whether it copies a tensor from the CPU to another device."""
    return node.target is _TO_COPY and not is_on_cpu(node) and is_on_cpu(node.all_input_nodes[0])


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS)


def _device_inputs(gm: GraphModule, copies: Sequence[Node]) -> list[Node]:
    """The device part's inputs: in the graph's order, with copies in place of CPU inputs."""
    inputs: list[Node] = []
    for node in gm.graph.find_nodes(op="placeholder"):
        inputs += [c for c in copies if c.args[0] is node] if is_on_cpu(node) else [node]
    return inputs + [copy for copy in copies if copy not in inputs]


def _device_part(
    gm: GraphModule, inputs: Iterable[Node], on_host: set[Node], results: Sequence[Any]
) -> GraphModule | None:
    """The device's nodes as a graph; None if they need values of the host besides `inputs`."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = node.meta
    for node in gm.graph.nodes:
        if node in copies or node.op in ("placeholder", "output"):
            continue
        if copies.keys() >= {*node.all_input_nodes} and not is_on_cpu(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif node not in on_host:
            return None
    if not copies.keys() >= {v for v in results if isinstance(v, Node)}:
        return None
    graph.output(tuple(copies.get(v, v) for v in results))
    return GraphModule(gm, graph)


def _host_part(gm: GraphModule, on_host: set[Node], returned: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        if node in on_host:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if _is_copy_to_device(node):
                copies[node].target = copy_to_device
    graph.output(tuple(copies[node] for node in returned))
    graph.eliminate_dead_code()
    return GraphModule(gm, graph)
