"""apex.contrib.torchsched's schedule: the deepest path on one stream, the rest in turn."""

from dataclasses import dataclass
from itertools import cycle

from nimble_fx.ir.bitset_dag import bits
from nimble_fx.ir.task_graph import TaskGraph, dependency_rows


@dataclass(frozen=True)
class DepthRoundRobin:
    """Streams as in apex.contrib.torchsched; the program's own launch order.

    The longest path, in tasks, is on stream 0; all others take the side streams in turn, in
    program order. There it works on Inductor's fused kernels, here on the program's operators.

    Requires: `after` holds the dependencies.
    Ensures: streams 0..n-1 are used, n <= `n_streams`.

    Source: NVIDIA apex, `apex.contrib.torchsched` (8 streams unless configured).
    """

    n_streams: int = 8
    name = "depth-round-robin"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with streams. Cost: O(tasks + edges)."""
        path = set(longest_path(dependency_rows(graph.launching)))
        side = cycle(range(1, self.n_streams))
        streams = {
            task.name: 0 if i in path else next(side) for i, task in enumerate(graph.launching)
        }
        return graph.with_streams(streams)


def longest_path(rows: list[int]) -> list[int]:
    """The vertices of a longest path; of several, the one that comes first."""
    ahead = [1] * len(rows)
    for u in reversed(range(len(rows))):
        ahead[u] += max((ahead[v] for v in bits(rows[u])), default=0)
    path: list[int] = []
    choices = list(range(len(rows)))
    while choices:
        path.append(max(choices, key=lambda u: (ahead[u], -u)))
        choices = list(bits(rows[path[-1]]))
    return path
