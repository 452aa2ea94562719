"""Products with the same matrix are merged, with the same results."""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

import nimble_fx
from nimble_fx import compiler
from nimble_fx.rewrites import merge_products as merge_products_module
from nimble_fx.rewrites.eliminate_common_subexpressions import eliminate_common_subexpressions
from nimble_fx.rewrites.merge_products import MAX_ROWS, MIN_ELEMENTS, merge_products
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.storages import storage_key
from tests.strategies.product_networks import MERGEABLE, WIDTH, ProductNetwork, product_networks
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import InferenceGraph, inference_graph

aten = torch.ops.aten


def traced(model: nn.Module, *inputs: Tensor) -> InferenceGraph:
    """A model's graph, which takes each matrix once."""
    graph = inference_graph(model.eval(), *inputs)
    graph.gm = eliminate_common_subexpressions(graph.gm)
    return graph


def rewritten(model: nn.Module, *inputs: Tensor) -> InferenceGraph:
    """A model's graph after the rewrite, which computes the same."""
    graph = traced(model, *inputs)
    graph.gm = merge_products(graph.gm, graph.static)
    graph.gm.graph.lint()
    with torch.no_grad():
        assert_as_accurate(model, inputs, graph.gm(*graph.arguments))
    return graph


def is_left_alone(graph: InferenceGraph) -> bool:
    return merge_products(graph.gm, graph.static) is graph.gm


def products(gm: GraphModule) -> list[Node]:
    return [node for node in gm.graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]


def sharing(values: dict[Node, Any]) -> set[frozenset[Node]]:
    """Which nodes' tensors lie in one storage."""
    nodes = defaultdict[int, set[Node]](set)
    for node, value in values.items():
        for tensor in tensors_in([value]):
            nodes[storage_key(tensor)].add(node)
    return {frozenset(each) for each in nodes.values()}


@given(product_networks())
def test_any_network_computes_the_same_and_fake_tensors_say_where_it_lies(
    drawn: tuple[ProductNetwork, tuple[Tensor, ...]],
) -> None:
    model, inputs = drawn
    graph = rewritten(model, *inputs)
    run = Interpreter(graph.gm, garbage_collect_values=False)
    with torch.no_grad():
        run.run(*graph.arguments)
    real = {node: value for node, value in run.env.items() if node.op != "output"}
    fake = {node: node.meta["val"] for node in real}
    assert sharing(real) == sharing(fake)
    for node, value in real.items():
        for tensor, said in zip(tensors_in([value]), tensors_in([fake[node]]), strict=True):
            assert (tensor.shape, tensor.stride()) == (said.shape, said.stride())


@given(product_networks(n_layers=1, returned=False, then=MERGEABLE))
def test_there_are_as_many_products_by_a_matrix_as_the_longest_chain_of_them(
    drawn: tuple[ProductNetwork, tuple[Tensor, ...]],
) -> None:
    """By Mirsky's theorem, fewer classes of independent products there cannot be."""
    model, inputs = drawn
    graph = traced(model, *inputs)
    edges = [(a, b) for b in graph.gm.graph.nodes for a in b.all_input_nodes]
    paths = nx.transitive_closure_dag(nx.DiGraph(edges))
    longest = nx.dag_longest_path(paths.subgraph(products(graph.gm)))
    assert len(products(merge_products(graph.gm, graph.static))) == len(longest)


class Recurrent(nn.Module):
    """Layers that each read, step by step, what the one below computes."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.inward = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n_layers))
        self.across = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(n_layers))

    def forward(self, sequence: Tensor) -> Tensor:
        states = [sequence.new_zeros(sequence.shape[1:])] * len(self.inward)
        for x in sequence.unbind():
            for i, (inward, across) in enumerate(zip(self.inward, self.across, strict=True)):
                x = states[i] = torch.tanh(inward(x) + across(states[i]))
        return torch.cat(states)


def test_a_recurrent_layer_has_one_product_for_the_inputs_of_all_steps() -> None:
    n_layers, n_steps = 3, 5
    graph = rewritten(Recurrent(n_layers), torch.randn(n_steps, 2, WIDTH))
    rows = sorted(len(node.meta["val"]) for node in products(graph.gm))
    assert rows == [2] * n_layers * n_steps + [2 * n_steps] * n_layers


def test_products_of_as_many_rows_as_count_by_a_matrix_as_large_as_counts_are_merged() -> None:
    width = MIN_ELEMENTS // WIDTH
    inputs = torch.randn(MAX_ROWS, width), torch.randn(MAX_ROWS, width)
    assert len(products(rewritten(Twice(plain, width), *inputs).gm)) == 1


def test_products_beside_one_that_is_returned_are_merged() -> None:
    def three(x: Tensor, y: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        return x @ matrix, torch.tanh(y @ matrix) + torch.tanh((x - y) @ matrix)

    graph = rewritten(Twice(three), torch.randn(2, WIDTH), torch.randn(2, WIDTH))
    assert sorted(len(node.meta["val"]) for node in products(graph.gm)) == [2, 4]


class Twice(nn.Module):
    """A function of products of two inputs by one matrix."""

    def __init__(self, function: Callable[..., Any], width: int = WIDTH) -> None:
        super().__init__()
        self.function = function
        self.matrix = nn.Parameter(torch.randn(width, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y, self.matrix)


def plain(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    return torch.tanh(x @ matrix) + torch.tanh(y @ matrix)


def with_a_bias_per_row(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    bias = x[:, :1] * 2
    return torch.tanh(torch.addmm(bias, x, matrix)) + torch.tanh(torch.addmm(bias, y, matrix))


def with_factors(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    one = torch.addmm(matrix[0], x, matrix, alpha=2)
    return torch.tanh(one) + torch.tanh(torch.addmm(matrix[0], y, matrix))


def with_other_biases(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    one = torch.addmm(matrix[0], x, matrix)
    return torch.tanh(one) + torch.tanh(torch.addmm(matrix[1], y, matrix))


def one_after_the_other(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(x @ matrix) @ matrix) + y


def returned(x: Tensor, y: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    return x @ matrix, y @ matrix


def returned_as_a_view(x: Tensor, y: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    return (x @ matrix)[0], torch.tanh(y @ matrix)


def with_a_random_number(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    return plain(x, y, matrix) + 0 * torch.rand(())


def that_writes(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    one = torch.tanh(x @ matrix)
    x.zero_()
    return one + torch.tanh(y @ matrix)


def with_one_that_only_weights_make(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    return torch.tanh(matrix[:2] @ matrix) + torch.tanh(y @ matrix)


def that_keep_large_values(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    """Each product scales what its rows are taken from."""
    total = x.new_zeros(WIDTH)
    for i in range(4):
        large = torch.sin(y + i).expand(1000, *y.shape).clone()
        total = total + (large * (large.mean(0) @ matrix)).sum((0, 1))
    return total


def viewed_by_offset(
    view: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, matrix: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.tanh(x @ matrix), view(y @ matrix) * 1


BY_OFFSET: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": lambda y: y.as_strided((2, WIDTH), (WIDTH, 1), 0),
    "strided copy": lambda y: torch.as_strided_copy(y, (2, WIDTH), (WIDTH, 1), 0),
    "strided scatter": lambda y: torch.as_strided_scatter(y, y[0], (WIDTH,), (1,), 0),
    "type": lambda y: y[:, :-1].reshape(-1, WIDTH - 1).view(torch.int32),
    "type of a copy": lambda y: torch.view_copy(y[:, :-1].reshape(-1, WIDTH - 1), torch.int32),
    "copy of a complex": lambda y: torch.view_as_complex_copy(y.view(-1, 2)).abs(),
    "complex": lambda y: torch.view_as_complex(y.view(-1, 2)).abs(),
}


FEW, MANY = torch.randn(2, WIDTH), torch.randn(MAX_ROWS + 1, WIDTH)
LEFT_ALONE = {
    "a small matrix": (plain, MIN_ELEMENTS // WIDTH - 1, FEW),
    "many rows": (plain, WIDTH, MANY),
    "a bias for each row": (with_a_bias_per_row, WIDTH, FEW),
    "other factors": (with_factors, WIDTH, FEW),
    "other biases": (with_other_biases, WIDTH, FEW),
    "one after the other": (one_after_the_other, WIDTH, FEW),
    "returned": (returned, WIDTH, FEW),
    "a view is returned": (returned_as_a_view, WIDTH, FEW),
    "a random number": (with_a_random_number, WIDTH, FEW),
    "a write": (that_writes, WIDTH, FEW),
    "a product of weights": (with_one_that_only_weights_make, WIDTH, FEW),
    **{name: (partial(viewed_by_offset, view), WIDTH, FEW) for name, view in BY_OFFSET.items()},
    "large values": (that_keep_large_values, WIDTH, FEW),
}


@pytest.mark.parametrize(("function", "width", "x"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_other_products_are_left_alone(function: Callable[..., Any], width: int, x: Tensor) -> None:
    x = x[:, :width].clone()
    assert is_left_alone(traced(Twice(function, width), x, x + 1))


def test_large_results_are_left_alone_where_what_came_before_took_less_memory_in_place() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(1, 2**16))

        def forward(self, xs: Tensor) -> Tensor:
            value = torch.relu(torch.sin(self.matrix.expand(48, -1) * xs[0, 0]))  # 12 MiB, or 24
            total = value.sum()
            for x in xs.unbind():
                total = total + torch.relu(x @ self.matrix).sum()  # 4 MiB each
            return total

    assert is_left_alone(traced(Wide(), torch.randn(4, MAX_ROWS, 1)))


@pytest.mark.parametrize(("n_rows", "is_merged"), [(2**14, True), (2**9, False)])
def test_peak_memory_may_grow_by_a_part(n_rows: int, is_merged: bool) -> None:
    class AfterMuch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(1, 2**16))
            self.much = nn.Parameter(torch.randn(n_rows, 2**10))  # 64 MiB, or 2

        def forward(self, xs: Tensor) -> Tensor:
            first, second = xs.mul(2).unbind()
            row = torch.tanh(first @ self.matrix).sum(0) + self.much.sum()
            return row + torch.tanh(second @ self.matrix).sum(0)

    graph = traced(AfterMuch(), torch.randn(2, 8, 1))
    assert is_left_alone(graph) is not is_merged


def test_products_of_a_number_of_rows_that_changes_are_left_alone() -> None:
    x, y = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    for each in (x, y):
        torch._dynamo.mark_dynamic(each, 0)
    assert is_left_alone(traced(Twice(plain), x, y))


def test_products_by_a_sparse_matrix_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_products_module, "MAX_GROWTH", 9)  # whatever memory it takes
    graph = traced(Twice(plain), FEW, FEW + 1)
    matrix = products(graph.gm)[0].all_input_nodes[1]
    with matrix.meta["val"].fake_mode:
        matrix.meta["val"] = matrix.meta["val"].to_sparse()
    assert is_left_alone(graph)


@pytest.mark.parametrize(
    ("options", "n_products"),
    [({}, 1), ({"device": "virtual"}, 2), ({"fold_weights": False}, 2)],
    ids=["here", "virtual", "not folded"],
)
def test_products_are_merged_on_a_cpu_unless_all_is_to_be_rounded_as_in_eager(
    options: dict[str, Any], n_products: int
) -> None:
    model, inputs = Twice(plain).eval(), (torch.randn(2, WIDTH), torch.randn(2, WIDTH))
    with torch.no_grad():
        compiled = torch.compile(model, backend="nimble", options=options)
        assert_as_accurate(model, inputs, [compiled(*inputs)])
    (program,) = nimble_fx.programs()
    tasks = [task for task in program.graph.tasks if task.target is aten.mm.default]
    assert len(tasks) == n_products


def test_values_are_compared_where_products_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge_wrongly(gm: GraphModule, static: Collection[str]) -> GraphModule:
        merged = merge_products(gm, static)
        (split,) = merged.graph.find_nodes(op="call_function", target=aten.split_with_sizes.default)
        one, other = split.users
        one.args, other.args = other.args, one.args
        merged.recompile()
        return merged

    monkeypatch.setattr(compiler, "merge_products", merge_wrongly)
    model = Twice(lambda x, y, matrix: x @ matrix - 2 * (y @ matrix))
    compiled = torch.compile(model, backend="nimble", options={"verify": "values"})
    with torch.no_grad(), pytest.raises(nimble_fx.RewriteError):
        compiled(torch.randn(2, WIDTH), torch.randn(2, WIDTH))
