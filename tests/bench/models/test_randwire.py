"""RandWire against networkx and the arithmetic of its paper."""

import networkx as nx
import pytest
import torch

from bench.models.randwire import MODELS, SEEDS, Node, Stage, watts_strogatz


def _digraph(seed: int) -> "nx.DiGraph[int]":
    graph = nx.watts_strogatz_graph(32, 4, 0.75, seed=seed)
    digraph: nx.DiGraph[int] = nx.DiGraph()
    digraph.add_nodes_from(graph)
    digraph.add_edges_from((min(edge), max(edge)) for edge in graph.edges)
    return digraph


def _stage_parameters(digraph: "nx.DiGraph[int]", before: int, channels: int) -> int:
    """Of the edges; then of the nodes, by what they read: a node, or the stage's input."""
    n_inputs = sum(degree == 0 for _, degree in digraph.in_degree())
    inner = (32 - n_inputs) * (9 * channels + channels * channels)
    return 64 + inner + n_inputs * (9 * before + before * channels) + 32 * 2 * channels


def test_it_has_the_parameters_that_its_graphs_say() -> None:
    widths = (78, 78, 156, 312)
    stem = 3 * 39 * 9 + 2 * 39 + 39 * 78 * 9 + 2 * 78
    stages = sum(
        _stage_parameters(_digraph(seed), *widths[i : i + 2]) for i, seed in enumerate(SEEDS)
    )
    head = 312 * 1280 + 2 * 1280 + 1280 * 1000 + 1000
    assert stem + stages + head == MODELS[0].n_parameters


@pytest.mark.parametrize("seed", SEEDS)
def test_every_node_of_a_stage_matters_to_its_output(seed: int) -> None:
    digraph = _digraph(seed)
    stage = Stage(watts_strogatz(seed), 2, 3)
    stage(torch.randn(4, 2, 8, 8)).square().sum().backward()
    used = {v for v, node in enumerate(stage.nodes) if _has_gradient(node)}
    assert used == set(digraph)
    assert set(stage.last) == {v for v, degree in digraph.out_degree() if degree == 0}


def _has_gradient(node: torch.nn.Module) -> bool:
    return all(p.grad is not None and bool(p.grad.any()) for p in node.parameters())


def test_a_node_weighs_its_inputs_by_sigmoids() -> None:
    node = Node(3, 3, stride=1, n_edges=2).eval()
    assert node.weights is not None
    with torch.no_grad():
        node.weights.copy_(torch.tensor([1.0, -2.0]))
    node.transform = torch.nn.Sequential()
    x, y = torch.randn(2, 1, 3, 4, 4).unbind()
    expected = x / (1 + torch.tensor(-1.0).exp()) + y / (1 + torch.tensor(2.0).exp())
    torch.testing.assert_close(node([x, y]), expected)
