"""Finds which values of an ATen graph share memory, and which operators read it."""

import operator
from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.reinplace.parts_of_memory import are_disjoint
from nimble_fx.torch_internals.in_place_forms import allocates_results
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.escape_analysis import aliases, keeps_to_its_schema, written_args


@dataclass(eq=False)
class Memory:
    """Memory that one or several values of a graph share.

    Attributes:
        makers: the nodes that introduce it: operators that allocate it, or inputs.
        values: the nodes whose results lie in it.
        readers: the nodes that read or write it, including the graph's output, after their
            positions, and in the order of these; infinite for a node that may keep a reference to
            it. (A custom operator that writes to an argument may keep it, but then finds there what
            eager calls leave there.)
        positions: of all nodes in the graph.
        replaced: readers that are now writes to a part of it, with that part.
    """

    makers: list[Node]
    values: list[Node]
    readers: list[tuple[float, Node]]
    positions: dict[Node, int]
    replaced: dict[Node, Tensor] = field(default_factory=dict)

    @property
    def escapes(self) -> bool:
        """Whether the caller gets it, or a custom operator."""
        return bool(self.readers) and _position(self.readers[-1]) == inf

    @property
    def is_allocated(self) -> bool:
        """Whether an operator of the graph allocates it; otherwise it is an input's."""
        return len(self.makers) == 1 and allocates_results(self.makers[0].target)

    def is_read_from(self, node: Node, except_by: Collection[Node | None]) -> bool:
        """Whether a node other than `except_by` reads it at the position of `node` or later."""
        return any(reader not in except_by for _, reader in self._readers_from(node))

    def is_part_read_from(
        self, node: Node, except_by: Collection[Node | None], part: Tensor, whole: Tensor
    ) -> bool:
        """As `is_read_from`, without nodes that certainly read other elements.

        Args:
            node: the position.
            except_by: nodes that do not count.
            part: a view of the memory.
            whole: the tensor that it is a view of.
        """
        values = set(self.values)

        def may_read(reader: Node) -> bool:
            read = [arg.meta["val"] for arg in reader.all_input_nodes if arg in values]
            parts = [self.replaced[reader]] if reader in self.replaced else read
            return not parts or not all(are_disjoint(each, part, whole) for each in parts)

        return any(
            position == inf or may_read(reader)
            for position, reader in self._readers_from(node)
            if reader not in except_by
        )

    def _readers_from(self, node: Node) -> Iterator[tuple[float, Node]]:
        first = bisect_left(self.readers, self.positions[node], key=_position)
        return (self.readers[i] for i in range(first, len(self.readers)))

    def add(self, other: "Memory", memories: dict[Node, "Memory"]) -> None:
        """Takes over another memory's values and readers, but not its makers."""
        if other is self:
            return
        self.values += other.values
        for reader in other.readers:
            insort(self.readers, reader, key=_position)
        self.replaced |= other.replaced
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
                reader = inf if is_kept else positions[node], node
                insort(memory.readers, reader, key=_position)
    return memories


def _position(reader: tuple[float, Node]) -> Any:
    return reader[0]


def _reads_nothing(node: Node) -> bool:
    """Whether a node's results are views of its arguments."""
    target = node.target
    return target is operator.getitem or (isinstance(target, OpOverload) and is_view(target))


def _may_keep(node: Node) -> bool:
    """Whether the arguments of a node may still be read after it, through a reference it keeps."""
    target = node.target
    return not isinstance(target, OpOverload) or not keeps_to_its_schema(target)
