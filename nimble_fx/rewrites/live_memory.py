"""The memory that is alive at each operator of an ATen graph, in program order."""

import operator
from itertools import accumulate
from math import inf

from torch import Tensor
from torch.fx import Graph, Node

from nimble_fx.torch_internals.symbolic import hint
from nimble_fx.tracing.escape_analysis import storages

MAX_GROWTH = 0.1
"""The fraction of its former peak memory, including inputs, by which a graph may grow."""


class LiveMemory:
    """The bytes of tensors that are alive at each node.

    Inputs and constants are always alive; a result is alive from its node to the last node that
    reads it or a view of it, according to the fake tensors. Symbolic sizes have the values that
    they had when the graph was traced.

    Attributes:
        peak: the most bytes that are alive at once in the original graph.
        least_peak: the same if each operator writes its results over the operands that die with
            it, as pointwise operators may.
    """

    def __init__(self, graph: Graph) -> None:
        """Cost: O(nodes + edges)."""
        self._positions = {node: i for i, node in enumerate(graph.nodes)}
        self._nbytes: dict[int, float] = {}
        self._last_uses: dict[int, int] = {}
        begun, ended = ([0.0] * len(self._positions) for _ in range(2))
        permanent = list[int]()
        for node, i in self._positions.items():
            for key, tensor in storages(node).items():
                if key not in self._nbytes:
                    self._nbytes[key] = _nbytes(tensor)
                    begun[i] += self._finite(key)
                    permanent += [key] if node.op != "call_function" else []
            operands = node.all_input_nodes if node.target is not operator.getitem else ()
            for used in (node, *operands):
                self._last_uses.update(dict.fromkeys(storages(used), i))
        self._last_uses.update(dict.fromkeys(permanent, len(self._positions) - 1))
        for key, i in self._last_uses.items():
            ended[i] += self._finite(key)
        after = list(accumulate(map(operator.sub, begun, ended)))
        self._alive = list(map(operator.add, after, ended))
        self.peak, self.least_peak = max(self._alive), max(after)
        self._most = (1 + MAX_GROWTH) * self.peak

    def try_to_keep(self, node: Node, until: Node) -> bool:
        """Keeps a node's results alive for the users of another node, if the peak hardly grows.

        Args:
            node: the node whose results to keep.
            until: a later node with equal results, which it no longer computes.

        Returns:
            Whether it keeps them. Cost: O(nodes between the last use of the results and `until`).
        """
        ours, end = storages(node), self._positions[until]
        ended = [key for key in ours if self._last_uses[key] < end]
        if ended:
            start = min(self._last_uses[key] for key in ended) + 1
            nbytes = sum(self._nbytes[key] for key in ended)
            gap = [alive + nbytes for alive in self._alive[start:end]]
            if max(gap, default=0) > self._most:
                return False
            self._alive[start:end] = gap
        for key, later in zip(ours, storages(until), strict=True):
            self._last_uses[key] = max(self._last_uses[key], self._last_uses[later])
        return True

    def _finite(self, key: int) -> float:
        """The bytes of a storage; 0 if its size depends on data."""
        return self._nbytes[key] if self._nbytes[key] < inf else 0


def _nbytes(tensor: Tensor) -> float:
    """The bytes of a fake tensor's storage; inf if they depend on data."""
    nbytes = hint(tensor.untyped_storage().nbytes())
    return inf if nbytes is None else nbytes
