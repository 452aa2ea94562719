"""Products with large constant matrices read copies of these, and return the same values."""

from collections.abc import Callable
from math import ceil, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from nimble_fx.rewrites.folding import pack_matrices as pack_matrices_module
from nimble_fx.rewrites.folding.hoist_weights import fixed_nodes
from nimble_fx.rewrites.folding.pack_matrices import MANY_COLUMNS, MIN_ELEMENTS, pack_matrices
from nimble_fx.torch_internals.kernels.onednn import LINEAR
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import InferenceGraph, inference_graph

aten = torch.ops.aten
N_IN = 64
N_OUT = MIN_ELEMENTS // N_IN


def rewritten(model: nn.Module, *inputs: Tensor) -> InferenceGraph:
    """A model's graph after the rewrite, which computes the same."""
    graph = inference_graph(model.eval(), *inputs)
    pack_matrices(graph.gm, fixed_nodes(graph.gm, graph.static))
    graph.gm.graph.eliminate_dead_code()
    graph.gm.graph.lint()
    with torch.no_grad():
        assert_as_accurate(model, inputs, graph.gm(*graph.arguments))
    return graph


def n_calls(graph: InferenceGraph, target: object) -> int:
    return sum(node.target is target for node in graph.gm.graph.nodes)


class Function(nn.Module):
    """A function of its argument and of a matrix that is its parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], matrix: Tensor) -> None:
        super().__init__()
        self.function, self.matrix = function, nn.Parameter(matrix)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.matrix)


@given(st.data())
def test_any_product_of_two_matrices_stays_the_same(data: st.DataObject) -> None:
    n_rows = data.draw(st.sampled_from([1, 2, 5]))
    n_in, n_out = data.draw(st.sampled_from([(N_IN, N_OUT), (N_OUT, N_IN), (512, 512), (8, 8)]))
    bias = data.draw(st.sampled_from([None, torch.randn(n_out), torch.randn(2 * n_out)[::2]]))
    matrix = torch.randn(n_in, n_out)
    if data.draw(st.booleans(), label="stored column by column"):
        matrix = matrix.t().contiguous().t()
    x = torch.randn(n_rows, n_in)
    if data.draw(st.booleans(), label="rows with gaps"):
        x = torch.randn(n_rows, 2 * n_in)[:, ::2]

    def function(x: Tensor, matrix: Tensor) -> Tensor:
        return x @ matrix if bias is None else torch.addmm(bias.to(x), x, matrix)

    graph = rewritten(Function(function, matrix), x)
    is_large = n_in * n_out >= MIN_ELEMENTS
    assert n_calls(graph, LINEAR) == (is_large and n_rows > 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, N_IN), (2, 3, N_IN), (1, N_IN), (1, 1, N_IN)])
def test_linear_layers_of_several_rows_are_packed_and_of_one_are_stored_by_rows(
    shape: tuple[int, ...], bias: bool
) -> None:
    graph = rewritten(nn.Linear(N_IN, N_OUT, bias=bias), torch.randn(shape))
    n_rows = torch.Size(shape).numel() // N_IN
    assert n_calls(graph, LINEAR) == (n_rows > 1)
    (clone,) = graph.gm.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert clone.meta["val"].shape == ((N_OUT, N_IN) if n_rows > 1 else (N_IN, N_OUT))
    assert clone.meta["val"].is_contiguous()


def test_products_by_one_matrix_share_its_copy() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(512, 512) / 512**0.5)

        def forward(self, x: Tensor) -> Tensor:
            x = functional.linear(x, self.weight)
            return functional.linear(x, self.weight) @ self.weight.t()

    graph = rewritten(Tied(), torch.randn(4, 512))
    assert n_calls(graph, LINEAR) == 3
    assert n_calls(graph, aten.clone.default) == 1


def test_a_matrix_and_its_transposed_have_copies_of_their_own() -> None:
    def there_and_back(x: Tensor, matrix: Tensor) -> Tensor:
        return x @ matrix @ matrix.t()

    matrix = torch.randn(512, 512) / 512**0.5
    graph = rewritten(Function(there_and_back, matrix), torch.randn(4, 512))
    assert n_calls(graph, LINEAR) == n_calls(graph, aten.clone.default) == 2


def test_copies_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in [*self.layers, *self.layers]:
                x = layer(x)
            return x

    for n_copies in range(4):
        monkeypatch.setattr(pack_matrices_module, "MAX_NBYTES", (n_copies + 1) * 2**20 - 1)
        graph = rewritten(Layers(), torch.randn(2, 512))
        assert n_calls(graph, aten.clone.default) == n_copies
        assert n_calls(graph, LINEAR) == 2 * n_copies


LEFT_ALONE = {
    "a small matrix": (nn.Linear(N_IN, N_OUT - 1), torch.randn(4, N_IN)),
    "one row by few columns": (nn.Linear(512, MANY_COLUMNS * 512 - 1), torch.randn(1, 512)),
    "one row, by a matrix that is stored by rows": (
        Function(lambda x, matrix: x @ matrix, torch.randn(N_IN, N_OUT)),
        torch.randn(1, N_IN),
    ),
    "float64": (nn.Linear(N_IN, N_OUT).double(), torch.randn(4, N_IN).double()),
    "bfloat16": (nn.Linear(N_IN, N_OUT).bfloat16(), torch.randn(4, N_IN).bfloat16()),
    "the other factor": (
        Function(lambda x, matrix: matrix @ x, torch.randn(N_OUT, N_IN)),
        torch.randn(N_IN, 4),
    ),
    "a bias for each row": (
        Function(lambda x, m: torch.addmm(x[:, :1], x, m), torch.randn(N_IN, N_OUT)),
        torch.randn(4, N_IN),
    ),
    "factors of the terms": (
        Function(lambda x, m: torch.addmm(m[0], x, m, beta=2, alpha=3), torch.randn(64, 4096)),
        torch.randn(4, N_IN),
    ),
}


@pytest.mark.parametrize(("model", "x"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_other_products_are_left_alone(model: nn.Module, x: Tensor) -> None:
    graph = rewritten(model, x)
    assert not n_calls(graph, LINEAR)
    assert not n_calls(graph, aten.clone.default)


def test_a_matrix_of_the_call_is_left_alone() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x @ y

    graph = rewritten(Product(), torch.randn(4, N_IN), torch.randn(N_IN, N_OUT))
    assert not n_calls(graph, LINEAR)


def test_a_sparse_matrix_is_left_alone() -> None:
    graph = inference_graph(nn.Linear(N_IN, N_OUT).eval(), torch.randn(4, N_IN))
    (matrix,) = graph.gm.graph.find_nodes(op="call_function", target=aten.t.default)
    with matrix.meta["val"].fake_mode:
        matrix.meta["val"] = matrix.meta["val"].to_sparse()
    pack_matrices(graph.gm, set(graph.gm.graph.nodes))
    assert not n_calls(graph, LINEAR)


def test_products_of_a_number_of_rows_that_changes_are_left_alone() -> None:
    x = torch.randn(4, N_IN)
    torch._dynamo.mark_dynamic(x, 0)
    graph = rewritten(nn.Linear(N_IN, N_OUT), x)
    assert not n_calls(graph, LINEAR)


def test_one_row_by_as_many_columns_as_count_is_stored_by_rows() -> None:
    n = ceil(sqrt(MIN_ELEMENTS / MANY_COLUMNS))
    graph = rewritten(nn.Linear(n, MANY_COLUMNS * n), torch.randn(1, n))
    assert n_calls(graph, aten.clone.default) == 1


def test_nothing_is_packed_where_the_user_turned_the_library_off() -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        graph = rewritten(nn.Linear(N_IN, N_OUT), torch.randn(4, N_IN))
    assert not n_calls(graph, LINEAR)
    assert not n_calls(graph, aten.clone.default)
