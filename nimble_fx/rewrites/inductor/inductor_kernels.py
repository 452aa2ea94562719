"""Replaces a graph's operators with calls to the kernels that Inductor fuses them into.

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
from nimble_fx.rewrites.inductor.lost_writes import check_no_write_is_lost
from nimble_fx.rewrites.inductor.opaque_operators import (
    CONCATENATIONS,
    CONVOLUTIONS,
    PRODUCTS,
    with_opaque_operators,
)
from nimble_fx.rewrites.inductor.output_strides import restride_outputs
from nimble_fx.rewrites.inductor.output_views import hide_output_views
from nimble_fx.rewrites.inductor.overwritten_values import keep_overwritten_values
from nimble_fx.rewrites.inductor.same_interface import check_same_interface, inputs_and_constants
from nimble_fx.torch_internals.kernels.inductor import compile_with_inductor
from nimble_fx.torch_internals.names import FakeTensor

PredictedTime = Callable[[GraphModule], float]
"""Returns the predicted time of an ATen graph, in microseconds."""


def with_inductor_kernels(
    gm: GraphModule, predicted_us: PredictedTime | None = None
) -> GraphModule:
    """The graph with Inductor's kernels; the graph itself if it computes nothing.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        predicted_us: if not None, a graph with concatenations is compiled twice, once with the
            concatenations as kernels of their own, and the variant with the lower predicted time is
            returned. By itself Inductor fuses the concatenated values, or lets each branch write
            into the result, which orders branches that could run concurrently.

    Raises:
        UnsupportedError: Inductor cannot compile it, or wrote an unknown statement.
    """
    if not any(map(_is_fake, gm.graph.nodes)):
        return gm
    _check_inputs(gm)
    kept = [*PRODUCTS, *CONVOLUTIONS]
    fused = _rewritten(gm, with_opaque_operators(gm, kept))
    if predicted_us is None or not any(node.target in CONCATENATIONS for node in gm.graph.nodes):
        return fused
    apart = _rewritten(gm, with_opaque_operators(gm, [*kept, *CONCATENATIONS]))
    return min(fused, apart, key=predicted_us)


def _check_inputs(gm: GraphModule) -> None:
    """Checks that no input has its negative bit set, which Inductor's kernels ignore.

    Raises:
        UnsupportedError: an input is a lazily negated view.
    """
    for node in inputs_and_constants(gm.graph):
        if _is_fake(node) and node.meta["val"].is_neg():
            raise UnsupportedError(
                f"the input {node.name} is negated lazily, which Inductor's kernels would not see: "
                "pass Tensor.resolve_neg() of it"
            )


def _rewritten(gm: GraphModule, compiled: GraphModule) -> GraphModule:
    """The graph with the kernels that Inductor makes of an equivalent graph."""
    kept = keep_overwritten_values(_with_constants_as_inputs(compiled))
    module = compile_with_inductor(kept)
    if module is None:
        return gm
    graph = kernel_graph(gm, module)
    check_no_write_is_lost(graph)
    restride_outputs(gm.graph, graph)
    hide_output_views(gm.graph, graph)
    check_same_interface(gm.graph, graph)
    return GraphModule(gm, graph)


def _with_constants_as_inputs(gm: GraphModule) -> GraphModule:
    """The graph with its constants as additional inputs, after its own."""
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
