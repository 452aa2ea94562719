"""Common subexpression elimination: what a graph computes twice, it computes once.

Before: a = relu(x); b = relu(x), as in a cell whose branches each begin with their own activation.
After: a = relu(x), which also those read that read b.

AOTAutograd does this to training graphs alone, and takes 0.0 and -0.0 for the same argument.
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

    Cost: O(nodes + edges), and for each that is replaced the nodes since the last use of the other.

    Requires: an ATen operator whose results depend on its arguments alone. Neither they nor its
    arguments are written, or returned to the caller, who could tell one from two.
    Ensures: the same bits, and in program order hardly more memory at the peak (`LiveMemory`): a
    model may compute a large value again in order not to keep it.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
    """
    shared, memory = escaping_or_written(gm.graph), LiveMemory(gm.graph)
    latest: dict[Hashable, Node] = {}
    replaced: dict[Node, Node] = {}
    gone: set[int] = set()  # storages of results that are replaced
    for node in gm.graph.nodes:
        _take(node, replaced)
        key = _key(node) if _is_replaceable(node, shared) else node
        same = latest.get(key)
        if same is not None and memory.keeps(same, until=node):
            replaced[node] = same
            gone.update(storages(node))
        else:
            latest[key] = node
            if not gone.isdisjoint(storages(node)):  # a view of what is computed elsewhere now
                node.meta["val"] = fake_result(node)
    for node in reversed(replaced):
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _take(node: Node, replaced: Mapping[Node, Node]) -> None:
    """Replaces a node's arguments by those that are the same."""
    if not replaced.keys().isdisjoint(node.all_input_nodes):
        node.args, node.kwargs = map_arg(
            (node.args, node.kwargs), lambda arg: replaced.get(arg, arg)
        )


def _is_replaceable(node: Node, shared: AbstractSet[Node]) -> bool:
    """Whether nothing but its arguments tells it from another call of its operator."""
    return (
        node.op == "call_function"
        and follows_from_arguments(node)
        and not node.meta.get("unbacked_bindings")
        and shared.isdisjoint([node, *node.all_input_nodes])
    )


def _key(node: Node) -> Hashable:
    """Equal for calls of an operator with the same arguments: 2 is not 2.0, nor 0.0 -0.0."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    arguments = (leaf if isinstance(leaf, Node) else repr(leaf) for leaf in leaves)
    return node.target, str(structure), tuple(arguments)
