"""Embedding bags only compute the results that are read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from nimble_fx.rewrites.simplify_embedding_bags import simplify_embedding_bags
from tests.support.bits import assert_same_bits
from tests.support.inference_graphs import inference_graph

aten = torch.ops.aten

N_ROWS = 7


class Bags(nn.Module):
    """One call of `nn.EmbeddingBag` with options of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(N_ROWS, 3, **options)

    def forward(self, *arguments: Tensor) -> Any:
        return self.table(*arguments)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, N_ROWS - 1), min_size=2, max_size=2), min_size=1, max_size=4),
    st.sampled_from(["sum", "mean", "max"]),
    st.sampled_from([None, 0]),
)
def test_bags_of_any_kind_have_the_same_result(
    drawn: list[list[int]], mode: str, padding: int | None
) -> None:
    model, bags = Bags(mode=mode, padding_idx=padding), torch.tensor(drawn)
    graph = inference_graph(model, bags)
    gm = simplify_embedding_bags(graph.gm)
    with torch.no_grad():
        assert_same_bits(list(gm(*graph.arguments)), [model(bags)])
    targets = {node.target for node in gm.graph.nodes}
    assert aten._embedding_bag_forward_only.default in targets
    assert aten._embedding_bag.default not in targets


def test_a_row_that_is_not_there_is_eagers_error() -> None:
    model, x = Bags(), torch.tensor([[1], [N_ROWS]])
    compiled = nimble_fx.compile(model, torch.tensor([[1], [2]]))
    for call in (model, compiled):
        with pytest.raises(RuntimeError, match=r"Index 1 of input takes value 7"):
            call(x)


def test_bags_whose_other_results_are_read_stay_as_they_are() -> None:
    class Model(nn.Module):
        def forward(self, table: Tensor, rows: Tensor, offsets: Tensor) -> Any:
            return aten._embedding_bag.default(table, rows, offsets)

    rows, offsets = torch.tensor([1, 2]), torch.tensor([0, 1])
    graph = inference_graph(Model(), torch.randn(N_ROWS, 2), rows, offsets)
    gm = simplify_embedding_bags(graph.gm)
    assert aten._embedding_bag.default in {node.target for node in gm.graph.nodes}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("include_last_offset", [False, True])
def test_programs_with_bags_are_saved_and_loaded(
    mode: str, include_last_offset: bool, tmp_path: Path
) -> None:
    model = Bags(mode=mode, include_last_offset=include_last_offset)
    arguments = torch.randint(N_ROWS, (6,)), torch.tensor([0, 2, 6])
    compiled = nimble_fx.compile(model, arguments)
    (program,) = compiled.programs
    program.save(tmp_path / "bags.json")
    loaded = nimble_fx.load(tmp_path / "bags.json").bind(model)
    assert_same_bits(loaded(*arguments), [compiled(*arguments)])
