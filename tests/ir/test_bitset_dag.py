"""Bitset algorithms against networkx."""

import networkx as nx
from hypothesis import given

from nimble_fx.ir.bitset_dag import bits, longest_path_to, reduction
from tests.strategies import dags


def to_networkx(rows: list[int]) -> "nx.DiGraph[int]":
    digraph: nx.DiGraph[int] = nx.DiGraph()
    digraph.add_nodes_from(range(len(rows)))
    digraph.add_edges_from((u, v) for u, row in enumerate(rows) for v in bits(row))
    return digraph


@given(dags())
def test_reduction_and_closure_are_those_of_networkx(rows: list[int]) -> None:
    reduced, closure = reduction(rows)
    digraph = to_networkx(rows)
    assert set(to_networkx(reduced).edges) == set(nx.transitive_reduction(digraph).edges)
    assert set(to_networkx(closure).edges) == set(nx.transitive_closure_dag(digraph).edges)


@given(dags())
def test_longest_paths_are_as_long_as_networkx_finds_them(rows: list[int]) -> None:
    digraph = to_networkx(rows)
    for u in digraph:
        before = digraph.subgraph({u, *nx.ancestors(digraph, u)})
        assert longest_path_to(rows)[u] == nx.dag_longest_path_length(before) + 1
