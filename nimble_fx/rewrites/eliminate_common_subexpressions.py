"""Common subexpression elimination: computes equal expressions once.

Before: a = relu(x); b = relu(x), as in a cell whose branches each begin with their own activation.
After: a = relu(x); the readers of b read a.

AOTAutograd does this only to training graphs, and treats 0.0 and -0.0 as the same argument.
"""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet

from torch.fx import GraphModule, Node, map_arg

from nimble_fx.rewrites.live_memory import LiveMemory
from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.names import pytree
from nimble_fx.tracing.constant_folding import follows_from_arguments
from nimble_fx.tracing.escape_analysis import escaping_or_written, storages


def eliminate_common_subexpressions(gm: GraphModule) -> GraphModule:
    """Replaces operators by earlier ones that return the same.

    Cost: O(nodes + edges), plus for each replaced operator the nodes since the last use of the
    earlier one.

    Requires: an ATen operator whose results depend only on its arguments. Neither the results nor
    the arguments are written, and the results are not returned: the caller could tell one tensor
    from two.
    Ensures: the same bits, and in program order hardly more peak memory (`LiveMemory`), because a
    model may recompute a large value in order not to keep it.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    shared, memory = escaping_or_written(gm.graph), LiveMemory(gm.graph)
    latest: dict[Hashable, Node] = {}
    replaced: dict[Node, Node] = {}
    gone: set[int] = set()  # storages of replaced results
    for node in gm.graph.nodes:
        _take(node, replaced)
        key = _key(node) if _is_replaceable(node, shared) else node
        same = latest.get(key)
        if same is not None and memory.try_to_keep(same, until=node):
            replaced[node] = same
            gone.update(storages(node))
        else:
            latest[key] = node
            if not gone.isdisjoint(storages(node)):  # a view of a replaced result
                node.meta["val"] = fake_result(node)
    for node in reversed(replaced):
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _take(node: Node, replaced: Mapping[Node, Node]) -> None:
    """Replaces a node's arguments by the equal values that are kept."""
    if not replaced.keys().isdisjoint(node.all_input_nodes):
        node.args, node.kwargs = map_arg(
            (node.args, node.kwargs), lambda arg: replaced.get(arg, arg)
        )


def _is_replaceable(node: Node, shared: AbstractSet[Node]) -> bool:
    """Whether calls of the node's operator with equal arguments can share one result."""
    return (
        node.op == "call_function"
        and follows_from_arguments(node)
        and not node.meta.get("unbacked_bindings")
        and shared.isdisjoint([node, *node.all_input_nodes])
    )


def _key(node: Node) -> Hashable:
    """Equal for calls of an operator with the same arguments; 2 differs from 2.0, 0.0 from -0.0."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    arguments = (leaf if isinstance(leaf, Node) else repr(leaf) for leaf in leaves)
    return node.target, str(structure), tuple(arguments)
