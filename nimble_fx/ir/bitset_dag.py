"""Algorithms on a DAG of integers, with Python integers as bitsets.

A DAG of n vertices is a sequence `rows` of n integers: bit v of `rows[u]` is set when there is an
edge (u, v). Vertices are numbered in a topological order: u < v on each edge. One shift answers
"is there an edge?", one `|` merges two sets of vertices; on graphs of tens of thousands of
vertices that is a thousand times faster than sets of objects.
"""

from collections.abc import Iterator, Sequence

Rows = Sequence[int]


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits, ascending. Cost: O(bits set x words)."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def reduction(rows: Rows) -> tuple[list[int], list[int]]:
    """The minimum equivalent graph and the transitive closure of a DAG.

    A DAG has one transitive reduction (Aho, Garey, Ullman 1972). The successors of u are visited
    in ascending order; one that an earlier one reaches is redundant.
    Cost: O(edges x n / 64) words.
    """
    reduced, closure = [0] * len(rows), [0] * len(rows)
    for u in range(len(rows) - 1, -1, -1):
        reached = 0
        for v in bits(rows[u]):
            if not reached >> v & 1:
                reduced[u] |= 1 << v
                reached |= closure[v] | 1 << v
        closure[u] = reached
    return reduced, closure


def longest_path_to(rows: Rows) -> list[int]:
    """For each vertex, the number of vertices on the longest path that ends there."""
    length = [1] * len(rows)
    for u, row in enumerate(rows):
        for v in bits(row):
            length[v] = max(length[v], length[u] + 1)
    return length
