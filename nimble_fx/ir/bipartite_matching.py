"""Maximum bipartite matching on the rows of a DAG, minimum vertex cover, and width.

The rows are read as a bipartite graph: u on the left, v on the right, an edge where bit v of
`rows[u]` is set. A matching of it links vertices into disjoint paths: `matching[u]` comes right
after u.
"""

from collections.abc import Mapping

from nimble_fx.ir.bitset_dag import Rows, bits, reduction

Matching = dict[int, int]


def maximum_matching(rows: Rows, start: Mapping[int, int] | None = None) -> Matching:
    """A maximum matching, augmented from `start`; vertices that `start` covers stay covered.

    Phases of depth-first searches that share one set of visited vertices (Pothen and Fan, 1990).
    Cost: O(n x n / 64) words a phase; few phases in practice.
    """
    matching = dict(start or {})
    mate = {v: u for u, v in matching.items()}
    while _augment_once(rows, matching, mate):
        pass
    return matching


def _augment_once(rows: Rows, matching: Matching, mate: Matching) -> bool:
    """One phase: searches from each unmatched left vertex. Returns whether any path was found."""
    unvisited = (1 << len(rows)) - 1
    free = unvisited
    for v in mate:
        free ^= 1 << v
    found = False
    for root in range(len(rows)):
        if root in matching or not rows[root]:
            continue
        lefts, rights = [root], list[int]()
        while lefts:
            candidates = rows[lefts[-1]] & unvisited
            if not candidates:
                lefts.pop()
                if rights:
                    rights.pop()
                continue
            chosen = (candidates & free) or candidates
            v = (chosen & -chosen).bit_length() - 1
            unvisited ^= 1 << v
            rights.append(v)
            if v not in mate:
                free ^= 1 << v
                for left, right in zip(lefts, rights, strict=True):
                    matching[left], mate[right] = right, left
                found = True
                break
            lefts.append(mate[v])
    return found


def minimum_vertex_cover(rows: Rows, maximum: Matching) -> tuple[int, int]:
    """A minimum vertex cover, as two bitsets: (left, right).

    König (1931): from the unmatched left vertices follow alternating paths; the cover has the left
    vertices that are not reached and the right vertices that are.
    """
    mate = {v: u for u, v in maximum.items()}
    everyone = (1 << len(rows)) - 1
    queue = [u for u in range(len(rows)) if u not in maximum]
    left, unvisited = everyone, everyone
    while queue:
        u = queue.pop()
        left &= ~(1 << u)
        reached = rows[u] & unvisited
        unvisited ^= reached
        queue.extend(mate[v] for v in bits(reached))
    return left, everyone ^ unvisited


def width(rows: Rows) -> int:
    """The size of the largest antichain: the maximum logical concurrency.

    Dilworth (1950): it equals the fewest chains that cover all vertices, which is n less a maximum
    matching of the transitive closure.
    """
    _, closure = reduction(rows)
    return len(rows) - len(maximum_matching(closure))
