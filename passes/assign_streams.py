"""Assigns a stream to each task: chains of dependent tasks share one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nimble_fx.ir.bipartite_matching import Matching, maximum_matching, minimum_vertex_cover
from nimble_fx.ir.bitset_dag import Rows, longest_path_to, reduction
from nimble_fx.ir.task_graph import TaskGraph, dependency_rows

NamedPolicy = Literal["nimble", "serial"]
Chain = list[int]


@dataclass(frozen=True)
class AssignStreams:
    """Assigns each launching task to a stream.

    `policy="nimble"` (Kwon et al., NeurIPS 2020, section 4.2): no two independent tasks share a
    stream, `len(E') - len(M)` waits are enough, where E' are the edges of the minimum equivalent
    graph and M is a maximum matching of them, and no assignment with that concurrency needs
    fewer. Beyond the paper, the streams are the fewest that need so few waits. Nearly always that
    is the width of the graph; where it is not, the width would take more waits.
    `policy="serial"`: all tasks on stream 0.

    Requires: `after` is the minimum equivalent graph (reduce-edges).
    Ensures: streams 0..n-1 are all used, n <= `max_streams`; a stream's tasks form a chain unless
    `max_streams` forced chains to share. Streams are numbered in the order of their first tasks;
    none is urgent.

    Before: a -> b, a -> c, b -> d, c -> d
    After:  a, b, d on stream 0; c on stream 1
    """

    policy: NamedPolicy = "nimble"
    max_streams: int | None = None
    name = "assign-streams"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with `stream` set on each launching task. Cost: that of two matchings."""
        launching = graph.launching
        if self.policy == "serial":
            chains = [list(range(len(launching)))]
        else:
            rows = dependency_rows(launching)
            chains = merge_chains(chain_cover(rows), rows, self.max_streams)
        stream = {launching[u].name: s for s, chain in enumerate(chains) for u in chain}
        return graph.with_streams(stream)


def chain_cover(rows: Rows) -> list[Chain]:
    """Chains that cover a DAG, in the order of their heads.

    They follow as many edges of the minimum equivalent graph as disjoint paths can, and no cover
    that follows so many has fewer chains.
    """
    reduced, closure = reduction(rows)
    follows = _most_direct_chains(reduced, closure)
    heads = sorted(set(range(len(rows))) - set(follows.values()))
    chains = []
    for u in heads:
        chains.append([u])
        while chains[-1][-1] in follows:
            chains[-1].append(follows[chains[-1][-1]])
    return chains


def _most_direct_chains(reduced: Rows, closure: Rows) -> Matching:
    """The largest matching of the closure among those with the most edges of the reduction.

    By complementary slackness: with a minimum vertex cover of the reduction, these matchings cover
    all its vertices, by edges of the reduction with one end in it; their other edges have no end in
    it. A matching of only such edges, augmented from a maximum one of the reduction, stays one.
    """
    direct = maximum_matching(reduced)
    left, right = minimum_vertex_cover(reduced, direct)
    usable = [
        row & ~right if left >> u & 1 else row | (paths & ~right)
        for u, (row, paths) in enumerate(zip(reduced, closure, strict=True))
    ]
    return maximum_matching(usable, start=direct)


def merge_chains(chains: Sequence[Chain], rows: Rows, limit: int | None) -> list[Chain]:
    """The chains merged into at most `limit` streams, so that they delay each other least.

    Time is counted in tasks along the longest path. A chain goes to a stream that is free when it
    could start, else to the one with the least delay and then the fewest tasks.
    """
    if limit is None or len(chains) <= limit:
        return list(chains)
    length_to = longest_path_to(rows)
    streams: list[Chain] = [[] for _ in range(limit)]
    busy_until = [0] * limit
    for chain in sorted(chains, key=lambda chain: (length_to[chain[0]], -len(chain))):
        start = length_to[chain[0]]
        best = min(range(limit), key=lambda s: (max(0, busy_until[s] - start), len(streams[s])))
        streams[best].extend(chain)
        busy_until[best] = max(busy_until[best], start) + len(chain)
    return sorted(sorted(stream) for stream in streams if stream)
