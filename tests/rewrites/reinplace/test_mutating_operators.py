"""Custom operators that write to their arguments: to which memory, and what they read there."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from hypothesis import given, settings
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from nimble_fx.rewrites.reinplace.wrapped_calls import unwrapped
from nimble_fx.torch_internals.auto_functionalized import WRAPPER
from tests.grammar import MUTATING, PRODUCTIONS, RANDOM, AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits

aten = torch.ops.aten
ROWS = [
    *(3 * MUTATING),
    *(
        row
        for row in PRODUCTIONS
        if re.search(r"slice|select|diagonal|view|clone|copy|fill|add|mul", row.text)
        and row not in RANDOM
    ),
]


def compiled(
    function: Callable[..., Any],
    rewrite: Callable[[GraphModule], GraphModule],
    changes: bool = False,
) -> tuple[Callable[..., Any], list[GraphModule]]:
    """A function that runs as its rewritten ATen graph, and the graphs, when it has run.

    Args:
        function: the function.
        rewrite: the rewrite.
        changes: whether the rewrite may change its argument.
    """
    graphs: list[GraphModule] = []

    def compile_graph(gm: GraphModule, _: Any) -> Any:
        before = str(gm.graph)
        graphs.append(rewrite(gm))
        assert changes or str(gm.graph) == before
        return make_boxed_func(graphs[-1].forward)

    run = aot_function(function, fw_compiler=compile_graph, keep_inference_input_mutations=True)
    return run, graphs


@pytest.mark.parametrize("rewrite", [unwrapped, reinplace_updates])
@settings(max_examples=100)
@given(program=aten_programs(rows=ROWS))
def test_they_leave_every_bit_as_eager_does(
    program: AtenProgram, rewrite: Callable[[GraphModule], GraphModule]
) -> None:
    ours, expected = program.example_inputs(), program.example_inputs()
    run, graphs = compiled(program.function(), rewrite)
    with torch.no_grad():
        assert_same_bits(tuple(run(*ours)), program.function()(*expected), strides=False)
    assert_same_bits(ours, expected)
    for gm in graphs:
        assert not gm.graph.find_nodes(op="call_function", target=WRAPPER)


COPIES = {aten.clone.default, aten.copy.default, aten.copy_.default}


def alone() -> Tensor:
    """A matrix that fills its memory."""
    return torch.arange(16.0).reshape(4, 4)


def behind() -> Tensor:
    """One that begins in the middle of its memory."""
    return torch.arange(24.0).reshape(6, 4)[2:]


def with_gaps() -> Tensor:
    """One whose rows have a distance."""
    return torch.arange(24.0).reshape(4, 6)[:, 1:5]


push, pop = torch.ops.nimble_grammar.push, torch.ops.nimble_grammar.pop
exchange, halve = torch.ops.nimble_grammar.exchange, torch.ops.nimble_grammar.halve


def whole(x: Tensor, row: Tensor) -> Any:
    push(x, row)
    return x * 2


def with_results(x: Tensor, row: Tensor) -> Any:
    return exchange(x, row, by=2.0)


def twice(x: Tensor, row: Tensor) -> Any:
    before = x * 2
    push(x, row)
    between = x + 1
    push(x, row * 2)
    return before, between, x.sum()


def first_rows(x: Tensor, row: Tensor) -> Any:
    push(x[:2], row)
    return x.sum()


def last_rows(x: Tensor, row: Tensor) -> Any:
    push(x[2:], row)
    return x.sum()


def a_column(x: Tensor, row: Tensor) -> Any:
    push(x[:, 1], row[0])
    return x.sum()


def transposed(x: Tensor, row: Tensor) -> Any:
    push(x.t(), row)
    return x.sum()


def two_rows_of_a_list(x: Tensor, row: Tensor) -> Any:
    halve([x[1], x[3]], row)
    return x.sum()


def allocated(x: Tensor, row: Tensor) -> Any:
    new = torch.zeros_like(x)
    push(new, row)
    return new, x + pop(new)


def before_and_after_an_assignment(x: Tensor, row: Tensor) -> Any:
    push(x, row)
    x[1] = row * 3
    push(x, row * 2)
    return x.sum()


@pytest.mark.parametrize(
    "function",
    [
        *(whole, with_results, twice, first_rows, last_rows, a_column, transposed),
        *(two_rows_of_a_list, allocated, before_and_after_an_assignment),
    ],
    ids=lambda function: function.__name__,
)
def test_they_write_in_place_where_nobody_reads_the_old_value(
    function: Callable[..., Any],
) -> None:
    assert_only_copies(function, [])


def old_value_is_returned(x: Tensor, row: Tensor) -> Any:
    old = x.clone()
    push(x, row)
    return old


def old_value_is_read_later(x: Tensor, row: Tensor) -> Any:
    new = x.clone()
    push(new, row)
    return x + new


def the_same_is_written_and_returned(x: Tensor, row: Tensor) -> Any:
    new = x * 2
    other = new.clone()
    push(new, row)
    push(other, row + 1)
    return new, other


@pytest.mark.parametrize(
    "function",
    [old_value_is_returned, old_value_is_read_later, the_same_is_written_and_returned],
    ids=lambda function: function.__name__,
)
def test_copies_that_make_a_difference_stay(function: Callable[..., Any]) -> None:
    assert_only_copies(function, [aten.clone.default])


def assert_only_copies(function: Callable[..., Any], expected: list[Any]) -> None:
    """Runs a function as eager does, and compares the whole tensors that its graph copies."""
    for place in (alone, with_gaps, behind):
        run, graphs = compiled(function, reinplace_updates)
        assert_runs_as_in_eager(run, function, place)
        (gm,) = graphs
        copies = [n for n in gm.graph.nodes if n.target in COPIES and n.meta["val"].numel() == 16]
        assert [each.target for each in copies] == expected, gm.graph


def assert_runs_as_in_eager(
    run: Callable[..., Any], function: Callable[..., Any], place: Callable[[], Tensor]
) -> None:
    ours, expected = (place(), torch.arange(4.0)), (place(), torch.arange(4.0))
    with torch.no_grad():
        results = pytree.tree_leaves(run(*ours)), pytree.tree_leaves(function(*expected))
    assert_same_bits(*results)
    assert_same_bits(ours, expected)


@pytest.mark.parametrize("function", [a_column, transposed, last_rows, two_rows_of_a_list])
@pytest.mark.parametrize("rewrite", [unwrapped, reinplace_updates])
def test_an_argument_may_lie_elsewhere_in_its_memory_in_a_later_call(
    function: Callable[..., Any], rewrite: Callable[[GraphModule], GraphModule]
) -> None:
    """PyTorch's own decomposition takes a view at the offset in the memory of the first call."""
    run, _ = compiled(function, rewrite)
    for place in (alone, behind):
        assert_runs_as_in_eager(run, function, place)


def test_an_input_to_which_the_graph_copies_nothing_back_is_not_written() -> None:
    def without_copies(gm: GraphModule) -> GraphModule:
        for node in gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
            gm.graph.erase_node(node)
        return reinplace_updates(gm)

    run, _ = compiled(whole, without_copies, changes=True)
    x, expected = alone(), alone()
    with torch.no_grad():
        result = run(x, torch.arange(4.0))
        assert_same_bits(result, whole(expected, torch.arange(4.0)))
    assert_same_bits(x, alone())


def test_the_caller_gets_another_tensor_than_the_input() -> None:
    def returning_what_is_copied(gm: GraphModule) -> GraphModule:
        (copy,) = gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
        (output,) = gm.graph.find_nodes(op="output")
        output.args = ((copy.args[1],),)
        return reinplace_updates(gm)

    run, _ = compiled(whole, returning_what_is_copied, changes=True)
    x, expected = alone(), alone()
    with torch.no_grad():
        result = run(x, torch.arange(4.0))
        whole(expected, torch.arange(4.0))
    assert_same_bits([x, result], [expected, expected])
    assert result.untyped_storage()._cdata != x.untyped_storage()._cdata


def test_equal_tensors_that_are_computed_once_are_copied_for_the_call_that_writes_to_one() -> None:
    def function(x: Tensor, row: Tensor) -> Any:
        one, other = x * 2, x * 2
        push(one, row)
        return one + other

    def computed_once(gm: GraphModule) -> GraphModule:
        first, second = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        second.replace_all_uses_with(first)
        gm.graph.erase_node(second)
        return reinplace_updates(gm)

    run, _ = compiled(function, computed_once, changes=True)
    assert_runs_as_in_eager(run, function, alone)
