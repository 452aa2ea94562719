"""Finds which values of an ATen graph share memory, and which operators read it."""

import operator
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from math import inf

from torch.fx import Graph, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.torch_internals.in_place_forms import allocates_results
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.escape_analysis import aliases, keeps_to_its_schema, written_args


@dataclass(eq=False)
class Memory:
    """Memory that one or several values of a graph share.

    Attributes:
        makers: the nodes that introduce it: operators that allocate it, or inputs.
        values: the nodes whose results lie in it.
        readers: the nodes that read or write it, including the graph's output, with their
            positions; infinite for a node that may keep a reference to it. (A custom operator that
            writes to an argument may keep it, but then finds there what eager calls leave there.)
    """

    makers: list[Node]
    values: list[Node]
    readers: list[tuple[float, Node]]
    positions: dict[Node, int]

    @property
    def escapes(self) -> bool:
        """Whether the caller gets it, or a custom operator."""
        return any(position == inf for position, _ in self.readers)

    @property
    def is_allocated(self) -> bool:
        """Whether an operator of the graph allocates it; otherwise it is an input's."""
        return len(self.makers) == 1 and allocates_results(self.makers[0].target)

    def is_read_from(self, node: Node, by: Collection[Node | None]) -> bool:
        """Whether a node other than the given ones reads it at a node's position or later."""
        begin = self.positions[node]
        return any(position >= begin and reader not in by for position, reader in self.readers)

    def add(self, other: "Memory", memories: dict[Node, "Memory"]) -> None:
        """Merges another memory into this one."""
        if other is self:
            return
        self.values += other.values
        self.readers += other.readers
        memories.update(dict.fromkeys(other.values, self))


def memories_of(graph: Graph) -> dict[Node, Memory]:
    """The memory of each node's results; results of one operator are assumed to share it.

    Cost: O(nodes + edges).
    """
    positions = {node: i for i, node in enumerate(graph.nodes)}
    memories: dict[Node, Memory] = {}
    by_key: dict[Hashable, Node] = {}
    for node, keys in aliases(graph).items():
        shared = dict.fromkeys(memories[by_key[key]] for key in keys if key in by_key)
        memory, *others = shared or [Memory([node], [], [], positions)]
        memories[node] = memory
        memory.values.append(node)
        for other in others:
            memory.makers += other.makers
            memory.add(other, memories)
        by_key.update(dict.fromkeys(keys, node))
    for node in graph.nodes:
        if not _reads_nothing(node):
            written = {memories[arg] for arg in written_args(node)}
            for memory in {memories[arg] for arg in node.all_input_nodes}:
                is_kept = _may_keep(node) and memory not in written
                memory.readers.append((inf if is_kept else positions[node], node))
    return memories


def _reads_nothing(node: Node) -> bool:
    """Whether a node's results are views of its arguments."""
    target = node.target
    return target is operator.getitem or (isinstance(target, OpOverload) and is_view(target))


def _may_keep(node: Node) -> bool:
    """Whether the arguments of a node may still be read after it, through a reference it keeps."""
    target = node.target
    return not isinstance(target, OpOverload) or not keeps_to_its_schema(target)
