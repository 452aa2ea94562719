"""Checks that something reads each result that an operator writes to memory.

Where many values are summed, some of which `scatter_reduce_` computes in place, the Inductor of
PyTorch 2.13 has put the sum, for several threads, into the kernel that fills the memory first,
before the operator that writes to it: gradients were wrong, in PyTorch's own backend too. A write
whose result nothing reads shows it.
"""

from torch.fx import Graph, Node

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.escape_analysis import storages, written_args


def check_no_write_is_lost(graph: Graph) -> None:
    """Compares what operators write with what later operators and the caller read.

    The caller may read inputs and constants.

    Args:
        graph: an ATen graph with fake tensors in `meta["val"]`.

    Raises:
        UnsupportedError: nothing reads the result of a write.

    Cost: O(nodes + edges).
    """
    theirs = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    read = {key for node in theirs for key in storages(node)}
    for node in reversed(graph.nodes):
        for arg in written_args(node):
            if read.isdisjoint(storages(arg)):
                raise UnsupportedError(
                    f"Inductor wrote a module in which nothing reads what {node.name} writes to "
                    f"{arg.name}, as if it had changed their order"
                )
        if not _makes_a_view(node):
            read.update(key for arg in node.all_input_nodes for key in storages(arg))


def _makes_a_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and is_view(node.target)
