"""Embedding bags compute what is read of them, with the same result."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import Node

import nimble_fx
from nimble_fx.rewrites.simplify_embedding_bags import simplify_embedding_bags
from nimble_fx.tracing.constant_folding import fold_constants
from tests.support.inference_graphs import inference_graph

aten = torch.ops.aten

BAGS = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)

N_ROWS = 7


def rewritten(model: nn.Module, *inputs: Tensor | None) -> list[Node]:
    """The operators that the rewrite leaves, after a comparison with eager."""
    graph = inference_graph(model, *inputs)
    gm = simplify_embedding_bags(fold_constants(graph.gm, lambda device: device))
    gm.graph.lint()
    with torch.no_grad():
        (result,), expected = gm(*graph.arguments), model(*inputs)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert result.stride() == expected.stride()
    return [node for node in gm.graph.nodes if node.target in (*BAGS, aten.embedding.default)]


class Bags(nn.Module):
    """One call of `nn.EmbeddingBag` with options of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(N_ROWS, 3, **options)

    def forward(self, *arguments: Tensor) -> Any:
        return self.table(*arguments)


rows = st.integers(0, N_ROWS - 1)


@settings(deadline=None)
@given(
    st.lists(st.lists(rows, min_size=2, max_size=2), min_size=1, max_size=4),
    st.integers(1, 2),
    st.sampled_from(["sum", "mean", "max"]),
    st.sampled_from([None, 0]),
)
def test_bags_of_any_kind_have_the_same_result(
    drawn: list[list[int]], size: int, mode: str, padding: int | None
) -> None:
    bags = torch.tensor(drawn)[:, :size]
    model = Bags(mode=mode, padding_idx=padding)
    (left,) = rewritten(model, bags)
    is_one_row = size == 1 and padding is None
    assert left.target is (aten.embedding.default if is_one_row else BAGS[1])


@given(st.lists(rows, min_size=1, max_size=5))
def test_bags_of_weighted_rows_stay_bags(drawn: list[int]) -> None:
    model, bags = Bags(mode="sum"), torch.tensor(drawn)[:, None]
    (left,) = rewritten(model, bags, None, torch.randn(len(drawn), 1))
    assert left.target is BAGS[1]


@given(st.lists(rows, min_size=3, max_size=3), st.sampled_from([[0, 1, 2], [0, 0, 1], [0, 2, 2]]))
def test_offsets_of_a_call_are_not_known(drawn: list[int], offsets: list[int]) -> None:
    (left,) = rewritten(Bags(), torch.tensor(drawn), torch.tensor(offsets))
    assert left.target is BAGS[1]


class WithConstants(nn.Module):
    """Bags that begin at constant offsets."""

    def __init__(self, offsets: list[int], **options: Any) -> None:
        super().__init__()
        self.table, self.offsets = Bags(**options), offsets

    def forward(self, rows: Tensor) -> Any:
        return self.table(rows, torch.tensor(self.offsets))


@pytest.mark.parametrize(
    ("offsets", "last", "is_one_row"),
    [
        ([0, 1, 2], False, True),
        ([0, 1, 2, 3], True, True),
        ([0, 1, 1], False, False),  # an empty bag, and one of two rows
        ([0, 1], False, False),
        ([0, 1, 2], True, False),  # the last row is in no bag
    ],
)
def test_offsets_that_say_one_row_a_bag(offsets: list[int], last: bool, is_one_row: bool) -> None:
    model = WithConstants(offsets, include_last_offset=last)
    (left,) = rewritten(model, torch.tensor([5, 0, 3]))
    assert left.target is (aten.embedding.default if is_one_row else BAGS[1])


def test_a_row_that_is_not_there_is_an_error_as_in_eager() -> None:
    model, x = Bags(), torch.tensor([[1], [N_ROWS]])
    compiled = nimble_fx.compile(model, torch.tensor([[1], [2]]))
    for call in (model, compiled):
        with pytest.raises((RuntimeError, IndexError), match="ndex"):
            call(x)


def test_bags_whose_other_results_are_read_stay_as_they_are() -> None:
    def all_results(table: Tensor, rows: Tensor, offsets: Tensor) -> Any:
        return aten._embedding_bag.default(table, rows, offsets)

    class Model(nn.Module):
        def forward(self, *arguments: Tensor) -> Any:
            return all_results(*arguments)

    graph = inference_graph(
        Model(), torch.randn(N_ROWS, 2), torch.tensor([1, 2]), torch.tensor([0, 1])
    )
    gm = simplify_embedding_bags(graph.gm)
    assert BAGS[0] in {node.target for node in gm.graph.nodes}
