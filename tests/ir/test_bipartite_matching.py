"""Matchings and covers against networkx."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir.bipartite_matching import maximum_matching, minimum_vertex_cover, width
from nimble_fx.ir.bitset_dag import bits, reduction
from tests.strategies import dags
from tests.support.oracle import matching_size


@given(dags())
def test_matching_is_one_and_as_large_as_networkx_finds(rows: list[int]) -> None:
    matching = maximum_matching(rows)
    assert all(rows[u] >> v & 1 for u, v in matching.items())
    assert len(set(matching.values())) == len(matching) == matching_size(rows)


@given(dags(), st.data())
def test_a_grown_matching_covers_what_its_start_covered(
    rows: list[int], data: st.DataObject
) -> None:
    full = maximum_matching(rows)
    kept = data.draw(st.sets(st.sampled_from(sorted(full)))) if full else set()
    grown = maximum_matching(rows, start={u: full[u] for u in kept})
    assert kept <= set(grown)
    assert {full[u] for u in kept} <= set(grown.values())
    assert len(grown) == len(full)


@given(dags())
def test_cover_touches_every_edge_with_as_many_vertices_as_the_matching(rows: list[int]) -> None:
    matching = maximum_matching(rows)
    left, right = minimum_vertex_cover(rows, matching)
    assert left.bit_count() + right.bit_count() == len(matching)
    assert all(left >> u & 1 or right >> v & 1 for u, row in enumerate(rows) for v in bits(row))


@given(dags(max_vertices=8))
def test_width_is_the_largest_set_of_vertices_without_a_path_between_two(rows: list[int]) -> None:
    _, closure = reduction(rows)
    vertices = range(len(rows))
    largest = max(
        (k for k in range(len(rows) + 1) for chosen in combinations(vertices, k)
         if not any(closure[u] >> v & 1 for u, v in combinations(chosen, 2))),
    )  # fmt: skip
    assert width(rows) == largest
