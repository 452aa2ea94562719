"""Stream assignment: maximum concurrency, fewest waits, fewest streams."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product

import networkx as nx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nimble_fx.ir.bipartite_matching import maximum_matching, width
from nimble_fx.ir.bitset_dag import bits, reduction
from nimble_fx.ir.task_graph import TaskGraph, dependency_rows
from nimble_fx.passes.assign_streams import AssignStreams, chain_cover, merge_chains
from nimble_fx.passes.reduce_edges import ReduceEdges
from tests.strategies import dags, task_graphs
from tests.support.oracle import matching_size


def links(chains: list[list[int]]) -> set[tuple[int, int]]:
    return {(u, v) for chain in chains for u, v in pairwise(chain)}


@given(dags(max_vertices=16))
def test_each_vertex_is_on_one_chain_and_no_two_independent_ones_share_one(rows: list[int]) -> None:
    _, closure = reduction(rows)
    chains = chain_cover(rows)
    assert sorted(u for chain in chains for u in chain) == list(range(len(rows)))
    assert all(closure[u] >> v & 1 for chain in chains for u, v in combinations(chain, 2))


MORE_THAN_WIDTH = [4, 4 | 256, 8 | 16, 0, 0, 128, 128, 256 | 512, 0, 0]
"""0 and 1 come before 2, and 2 before 3 and 4; 5 and 6 before 7, and 7 before 8 and 9; 1 before 8.

The width is 4: that of 3, 4, 5 and 6. A chain with 1 and 8 has none of these, but each maximum
matching of the reduction links 1 and 8.
"""
GROWS_FROM_LEFT = [16, 256, 3072, 2064, 160, 0, 2304, 0, 1536, 0, 0, 0]
GROWS_FROM_RIGHT = [128, 8, 264, 96, 128, 0, 0, 256, 0]
"""Where a matching grows by giving an edge of the reduction up, if it may use more edges."""


@given(dags(max_vertices=16))
@example(MORE_THAN_WIDTH)
@example(GROWS_FROM_LEFT)
@example(GROWS_FROM_RIGHT)
def test_chains_follow_as_many_reduced_edges_as_a_maximum_matching_has(rows: list[int]) -> None:
    reduced, _ = reduction(rows)
    followed = sum(reduced[u] >> v & 1 for u, v in links(chain_cover(rows)))
    assert followed == matching_size(reduced)


@given(dags(max_vertices=16))
@example(MORE_THAN_WIDTH)
def test_no_cover_that_follows_so_many_has_fewer_chains(rows: list[int]) -> None:
    assert len(chain_cover(rows)) == fewest_chains(rows)


def fewest_chains(rows: Sequence[int]) -> int:
    """The fewest chains that follow as many edges of the reduction as disjoint paths can."""
    reduced, closure = reduction(rows)
    graph: nx.Graph[tuple[str, int]] = nx.Graph()
    for u, row in enumerate(closure):
        for v in bits(row):
            weight = len(rows) if reduced[u] >> v & 1 else 1
            graph.add_edge(("left", u), ("right", v), weight=weight)
    return len(rows) - len(nx.max_weight_matching(graph))


def test_the_fewest_waits_may_need_more_streams_than_the_dag_is_wide() -> None:
    reduced, closure = reduction(MORE_THAN_WIDTH)
    edges = [(u, v) for u, row in enumerate(reduced) for v in bits(row)]
    fewest: dict[int, int] = {}
    for streams in assignments(closure, []):
        waits = sum(streams[u] != streams[v] for u, v in edges)
        n = max(streams) + 1
        fewest[n] = min(waits, fewest.get(n, waits))
    assert (min(fewest), fewest[4], fewest[5]) == (4, 5, 4)
    assert min(fewest.values()) == 4
    assert len(chain_cover(MORE_THAN_WIDTH)) == 5


@pytest.mark.parametrize(
    "rows",
    [
        [4, 12, 88, 80, 0, 192, 0, 0],
        [96, 40, 8, 16, 160, 0, 0, 0],
        [132, 148, 16, 96, 160, 0, 0, 0],
    ],
)
def test_both_optima_are_reached_where_growing_a_matching_gives_a_direct_edge_up(
    rows: list[int],
) -> None:
    reduced, closure = reduction(rows)
    grown = maximum_matching(closure, start=maximum_matching(reduced))
    assert sum(reduced[u] >> v & 1 for u, v in grown.items()) < matching_size(reduced)
    chains = chain_cover(rows)
    assert len(chains) == len(rows) - matching_size(closure)
    assert sum(reduced[u] >> v & 1 for u, v in links(chains)) == matching_size(reduced)


@pytest.mark.parametrize("n", [2, 3, 4, 5, pytest.param(6, marks=pytest.mark.slow)])
def test_both_optima_are_reached_on_every_dag_of_n_vertices(n: int) -> None:
    pairs = list(combinations(range(n), 2))
    for chosen in product([False, True], repeat=len(pairs)):
        rows = [0] * n
        for (u, v), edge in zip(pairs, chosen, strict=True):
            rows[u] |= edge << v
        reduced, _ = reduction(rows)
        chains = chain_cover(rows)
        assert len(chains) == width(rows)
        followed = sum(reduced[u] >> v & 1 for u, v in links(chains))
        assert followed == len(maximum_matching(reduced))


@given(dags(max_vertices=8))
def test_no_assignment_with_maximum_concurrency_needs_fewer_waits(rows: list[int]) -> None:
    reduced, closure = reduction(rows)
    edges = [(u, v) for u, row in enumerate(reduced) for v in bits(row)]
    fewest = min(
        sum(stream[u] != stream[v] for u, v in edges) for stream in assignments(closure, [])
    )
    chains = chain_cover(rows)
    stream_of = {u: s for s, chain in enumerate(chains) for u in chain}
    assert sum(stream_of[u] != stream_of[v] for u, v in edges) == fewest


def assignments(closure: Sequence[int], streams: list[int]) -> Iterator[list[int]]:
    """All ways to give vertices streams so that no two independent ones share one.

    `streams` has those of the first vertices. The others, one by one, join a stream or open one.
    """
    v = len(streams)
    if v == len(closure):
        yield streams
        return
    independent = {stream for u, stream in enumerate(streams) if not closure[u] >> v & 1}
    for stream in range(max(streams, default=-1) + 2):
        if stream not in independent:
            yield from assignments(closure, [*streams, stream])


@given(dags(max_vertices=16), st.integers(1, 5))
def test_a_limit_is_kept_and_no_vertex_lost(rows: list[int], limit: int) -> None:
    streams = merge_chains(chain_cover(rows), rows, limit)
    assert len(streams) == min(limit, fewest_chains(rows))
    assert sorted(u for stream in streams for u in stream) == list(range(len(rows)))


@given(task_graphs())
def test_policy_nimble_gives_each_launching_task_a_stream_and_others_none(graph: TaskGraph) -> None:
    reduced = ReduceEdges()(graph)
    scheduled = AssignStreams("nimble")(reduced)
    assert {t.stream for t in scheduled.launching} == set(range(scheduled.n_streams))
    assert scheduled.n_streams == fewest_chains(dependency_rows(reduced.launching))
    assert scheduled.n_streams >= scheduled.width == width_by_networkx(reduced)
    assert all(task.stream is None for task in scheduled.tasks if not task.launches)
    assert AssignStreams("nimble")(reduced) == scheduled


def width_by_networkx(graph: TaskGraph) -> int:
    return max(map(len, nx.antichains(graph.to_networkx())))


@given(task_graphs())
def test_policy_serial_puts_everything_on_stream_0(graph: TaskGraph) -> None:
    assert {task.stream for task in AssignStreams("serial")(graph).launching} <= {0}
