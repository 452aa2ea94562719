"""Updates of parts of tensors: when they are written in place, and when they must not be."""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

import nimble_fx
from nimble_fx.ir.task_graph import Ref
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from nimble_fx.tracing.escape_analysis import storages
from tests.grammar import PRODUCTIONS, AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.eager import assert_same
from tests.support.schedules import aten_graph

aten = torch.ops.aten
PLACES = torch.tensor([2, 0])
PLACES_2D = PLACES[:, None].expand(2, 3)
COPY_THE_WHOLE = {
    aten.diagonal_scatter.default,
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_fill.int_Scalar,
    aten.index_put.default,
    aten.masked_scatter.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
    aten.select_scatter.default,
    aten.slice_scatter.default,
}

Program = Callable[..., Any]


def results(gm: GraphModule, inputs: tuple[Tensor, ...]) -> list[Any]:
    """The inputs after a call, and what it returns."""
    torch.manual_seed(0)
    return [*inputs, *pytree.tree_leaves(gm(*inputs))]


ROWS = [
    row
    for row in PRODUCTIONS
    if re.search(r"scatter|index_|select|slice|diagonal|view|clone|copy|fill|add|mul", row.text)
]


def copying_back(gm: GraphModule, results: Sequence[int]) -> GraphModule:
    """A graph that ends with copies of some of its results to inputs of the same shape."""
    (output,) = gm.graph.find_nodes(op="output")
    inputs = gm.graph.find_nodes(op="placeholder")
    floats = [n for n in gm.graph.nodes if is_floating(n) and n not in inputs]
    for result in results[: len(floats)]:
        source = floats[-1 - result % len(floats)]
        for x in inputs:
            if is_floating(x) and x.meta["val"].shape == source.meta["val"].shape:
                with gm.graph.inserting_before(output):
                    call(gm.graph, source, aten.copy_.default, x, source)
                break
    gm.recompile()
    return gm


def is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


@settings(max_examples=150)
@given(aten_programs(rows=ROWS), st.lists(st.integers(0, 9), max_size=3))
def test_updates_in_place_leave_every_bit_and_alias_as_it_was(
    program: AtenProgram, copied_back: list[int]
) -> None:
    gm = aten_graph(program.function(), *program.example_inputs())
    gm = copying_back(gm, copied_back)
    before = str(gm.graph)
    expected = results(gm, program.example_inputs())
    ours = results(reinplace_updates(gm), program.example_inputs())
    assert str(gm.graph) == before
    assert_same_bits(ours, expected)
    assert_same_sharing(ours, expected)


@given(aten_programs(rows=ROWS))
def test_fake_tensors_alias_as_the_values_will(program: AtenProgram) -> None:
    """Who comes later finds memory by them."""
    gm = reinplace_updates(aten_graph(program.function(), *program.example_inputs()))
    real: dict[int, int] = {}
    fake: dict[int, int] = {}
    for node, value in values(gm, program.example_inputs()).items():
        fakes = list(storages(node))
        tensors = [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]
        if len(fakes) == len(tensors) == 1 and node.op == "call_function":
            key = tensors[0].untyped_storage()._cdata
            assert real.setdefault(fakes[0], key) == key, node.format_node()
            assert fake.setdefault(key, fakes[0]) == fakes[0], node.format_node()


def values(gm: GraphModule, inputs: tuple[Tensor, ...]) -> dict[Node, Any]:
    """What each node returns; all are kept, so that no memory is used again."""
    found: dict[Node, Any] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            found[n] = super().run_node(n)
            return found[n]

    Recorder(gm).run(*inputs)
    return found


def index_copy(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_copy_(0, PLACES, x).exp()


def index_add(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_add_(0, PLACES, x, alpha=2).exp()


def index_put(cache: Tensor, x: Tensor) -> Tensor:
    cache[PLACES] = x
    return cache[1:].exp()


def scatter(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_(0, PLACES_2D, x).exp()


def scatter_value(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_(0, PLACES_2D, 7.0) + x.sum()


def scatter_add(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_add_(0, PLACES_2D, x).exp()


def scatter_reduce(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_reduce_(0, PLACES_2D, x, "amax").exp()


def index_fill(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_fill_(0, PLACES, 3.0) + x.sum()


def masked_scatter(cache: Tensor, x: Tensor) -> Tensor:
    return cache.masked_scatter_(torch.tensor([[True], [False], [True], [False]]), x).exp()


def rows(cache: Tensor, x: Tensor) -> Tensor:
    cache[1:3] = x
    return cache.exp()


def part_of_rows(cache: Tensor, x: Tensor) -> Tensor:
    cache[1:3, 1:] += x[:, 1:]
    return cache.exp()


def one_row(cache: Tensor, x: Tensor) -> Tensor:
    cache[2] *= x[0]
    return cache.exp()


def diagonal(cache: Tensor, x: Tensor) -> Tensor:
    cache.diagonal().copy_(x[1])
    return cache.exp()


def read_before(cache: Tensor, x: Tensor) -> Any:
    before = cache.exp()
    return before, cache.index_copy_(0, PLACES, x).exp()


def written_from_itself(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_copy_(0, PLACES, cache[1:3] + x).exp()


def moved_within(cache: Tensor, x: Tensor) -> Tensor:
    cache[:2] = cache[2:]
    return cache + x.sum()


def written_twice(cache: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(0, PLACES, x)
    cache[1:3] = x + 1
    return cache.exp()


IN_PLACE = [
    *(index_copy, index_add, index_put, scatter, scatter_value, scatter_add, scatter_reduce),
    *(index_fill, masked_scatter, rows, part_of_rows, one_row, diagonal, read_before),
    *(written_from_itself, moved_within, written_twice),
]


def kept_beside(cache: Tensor, x: Tensor) -> Tensor:
    new = cache.index_copy(0, PLACES, x)
    cache.copy_(new)
    return new


def kept_beside_in_part(cache: Tensor, x: Tensor) -> Tensor:
    return kept_beside(cache, x)[1:]


def read_after(cache: Tensor, x: Tensor) -> Any:
    new = cache.index_copy(0, PLACES, x)
    old = cache.exp()
    cache.copy_(new)
    return old


def read_between(cache: Tensor, x: Tensor) -> Any:
    sums = cache[1:3] + x  # computed before the other update, written after it
    first = cache.index_copy(0, PLACES, x)
    second = first.slice_scatter(sums, 0, 1, 3)
    old = cache.exp()
    cache.copy_(second)
    return old


def overlapping(cache: Tensor, x: Tensor) -> Tensor:
    cache.copy_(cache.slice_scatter(cache[:2], 0, 1, 3))
    return cache + x.sum()


COPIED_BACK = [kept_beside, kept_beside_in_part, read_after, read_between, overlapping]


def run(program: Program, **options: Any) -> None:
    """Compares what calls return and leave with eager, and after the results were written to."""
    compiled = torch.compile(program, backend="nimble", options=options)
    cache = torch.randn(4, 3)
    expected_cache = cache.clone()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3)
            found = compiled(cache, x), program(expected_cache, copy.deepcopy(x))
            assert_same(*found)
            for result in found:
                for tensor in result if isinstance(result, tuple) else (result,):
                    tensor.add_(1)
            assert_same(cache, expected_cache)


def copies_of_the_whole() -> list[str]:
    """The tasks that copy the whole cache: to update the copy, or back."""
    (program,) = nimble_fx.programs()
    return [
        task.name
        for task in program.graph.tasks
        if task.target in COPY_THE_WHOLE
        or (task.target is aten.copy_.default and task.args[0] == Ref("cache"))
    ]


@pytest.mark.parametrize("program", IN_PLACE, ids=lambda program: program.__name__)
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_a_part_of_an_input_is_written_without_a_copy_of_the_whole(
    program: Program, options: dict[str, Any]
) -> None:
    run(program, **options)
    assert not copies_of_the_whole()


@pytest.mark.parametrize("program", COPIED_BACK, ids=lambda program: program.__name__)
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_an_input_whose_old_value_is_read_later_or_whose_new_one_is_kept_is_copied_back(
    program: Program, options: dict[str, Any]
) -> None:
    run(program, **options)
    assert copies_of_the_whole()


@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_an_input_with_gaps_is_written_at_the_end_for_its_update_has_none(
    options: dict[str, Any],
) -> None:
    def flat(cache: Tensor, x: Tensor) -> Tensor:
        return cache.index_copy_(0, PLACES, x).reshape(-1) * 2

    compiled = torch.compile(flat, backend="nimble", options=options)
    whole = torch.randn(4, 5)
    expected, x = whole.clone(), torch.randn(2, 3)
    with torch.no_grad():
        assert_same(compiled(whole[:, :3], x), flat(expected[:, :3], x))
    assert_same(whole, expected)
    assert copies_of_the_whole()
