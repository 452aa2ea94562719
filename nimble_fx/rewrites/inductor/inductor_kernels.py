"""Replaces a graph's operators by calls of the kernels that Inductor fuses them into.

Before: relu(x) + sigmoid(x), as three operators.
After:  cpp_fused_add_relu_sigmoid_0(x), one operator, whose kernel Inductor compiled.

Requires: all tensors are on one device; no size depends on data.
Ensures: the same inputs and outputs, with the same strides; values as Inductor computes them.
"""

from collections.abc import Callable
from operator import attrgetter

from torch.fx import Graph, GraphModule, Node

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.kernel_graph import kernel_graph
from nimble_fx.rewrites.inductor.opaque_operators import (
    CONCATENATIONS,
    PRODUCTS,
    with_opaque_operators,
)
from nimble_fx.rewrites.inductor.same_program import check_same_program, inputs_and_constants
from nimble_fx.torch_internals.kernels.inductor import compile_with_inductor
from nimble_fx.torch_internals.names import FakeTensor

PredictedTime = Callable[[GraphModule], float]
"""What an ATen graph is predicted to take, in microseconds."""


def with_inductor_kernels(
    gm: GraphModule, predicted_us: PredictedTime | None = None
) -> GraphModule:
    """The graph with Inductor's kernels; itself if it computes nothing.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        predicted_us: decides whether concatenations become kernels of their own: the graph, if it
            has any, is compiled in both ways, and the faster one is taken. Inductor fuses what is
            concatenated, or has each branch write into the one result, which orders them. None:
            they do not.

    Raises:
        UnsupportedError: Inductor cannot compile it, or wrote what is not known here.
    """
    if not any(map(_is_fake, gm.graph.nodes)):
        return gm
    _check_inputs(gm)
    fused = _rewritten(gm, with_opaque_operators(gm, PRODUCTS))
    if predicted_us is None or not any(node.target in CONCATENATIONS for node in gm.graph.nodes):
        return fused
    apart = _rewritten(gm, with_opaque_operators(gm, [*PRODUCTS, *CONCATENATIONS]))
    return min(fused, apart, key=predicted_us)


def _check_inputs(gm: GraphModule) -> None:
    """Checks that Inductor reads what inputs say: its kernels know nothing of negative bits.

    Raises:
        UnsupportedError: an input is the negative of what is in its memory.
    """
    for node in inputs_and_constants(gm.graph):
        if _is_fake(node) and node.meta["val"].is_neg():
            raise UnsupportedError(
                f"the input {node.name} is negated lazily, which Inductor's kernels would not see: "
                "pass Tensor.resolve_neg() of it"
            )


def _rewritten(gm: GraphModule, compiled: GraphModule) -> GraphModule:
    """The graph with the kernels that Inductor makes of another that computes the same."""
    module = compile_with_inductor(_with_constants_as_inputs(compiled))
    if module is None:
        return gm
    graph = kernel_graph(gm, module)
    check_same_program(gm.graph, graph)
    return GraphModule(gm, graph)


def _with_constants_as_inputs(gm: GraphModule) -> GraphModule:
    """The graph with an input in the place of each constant, after its own."""
    graph, values = Graph(), dict[Node, Node]()
    mode = next(n.meta["val"].fake_mode for n in gm.graph.nodes if _is_fake(n))
    for node in inputs_and_constants(gm.graph):
        if node.op == "placeholder":
            values[node] = graph.node_copy(node)
        else:
            values[node] = graph.placeholder(node.name)
            constant = attrgetter(str(node.target))(gm)
            values[node].meta["val"] = mode.from_tensor(constant, static_shapes=True)
    graph.output(graph.graph_copy(gm.graph, values))
    return GraphModule(gm, graph)


def _is_fake(node: Node) -> bool:
    return isinstance(node.meta.get("val"), FakeTensor)
