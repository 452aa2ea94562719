"""Updates that stay copies: the old value is read, or the written value lies in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from tests.support.bits import assert_same_bits
from tests.support.eager import assert_same

aten = torch.ops.aten
UPDATES = {
    aten.index_copy.default,
    aten.select_scatter.default,
    aten.slice_scatter.default,
}

Program = Callable[..., Any]


def old_value_is_read(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.select_scatter(row, 0, 1), y.exp()


def view_of_the_old_value_is_read(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    last = y[-1]
    return y.select_scatter(row, 0, 1).exp(), last.exp()


def old_value_is_returned(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.select_scatter(row, 0, 1), y


def old_value_is_read_before_it_is_written_by_what_was_computed_before(
    x: Tensor, row: Tensor
) -> Any:
    y = x * 2
    first = y[0] + row
    old = y.exp()
    return y.select_scatter(first, 0, 0), old


def rows_overlap(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.slice_scatter(y[:3], 0, 1, 4) + row


def elements_overlap(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.slice_scatter(y.t()[:4], 0, 0, 4) + row


def values_lie_in_it(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.index_copy(0, torch.arange(1, 3), y[:2]) + row


def rows_change_places(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.index_copy(0, torch.tensor([1, 0, 3, 2]), y) + row


def it_is_expanded(x: Tensor, row: Tensor) -> Any:
    y = (row * 2).expand(4, 4)
    return y.select_scatter(x[0], 0, 1)


def it_is_a_constant(x: Tensor, row: Tensor) -> Any:
    return torch.zeros(4, 4).select_scatter(x[0] * row, 0, 1)


def it_is_an_input(x: Tensor, row: Tensor) -> Any:
    return x.select_scatter(row, 0, 1)


def it_is_part_of_more(x: Tensor, row: Tensor) -> Any:
    return (x * 2)[:2].select_scatter(row, 0, 1)


def it_is_a_view_and_returned(x: Tensor, row: Tensor) -> Any:
    return (x * 2).t().select_scatter(row, 0, 1)


def it_is_the_only_one_of_several_views_and_returned(x: Tensor, row: Tensor) -> Any:
    return (x * 2).split(4)[0].select_scatter(row, 0, 1)


STAY = [
    *(old_value_is_read, view_of_the_old_value_is_read, old_value_is_returned, rows_overlap),
    *(
        elements_overlap,
        values_lie_in_it,
        rows_change_places,
        it_is_expanded,
        it_is_a_constant,
        it_is_an_input,
    ),
    *(it_is_part_of_more, it_is_a_view_and_returned),
    *(it_is_the_only_one_of_several_views_and_returned,),
]


@pytest.mark.parametrize("function", STAY, ids=lambda function: function.__name__)
def test_an_update_stays_a_copy_where(function: Program) -> None:
    x, row = torch.randn(4, 4), torch.randn(4)
    compiled = torch.compile(function, backend="nimble")
    with torch.no_grad():
        assert_same_bits(compiled(x, row), function(x, row))
    (program,) = nimble_fx.programs()
    assert {task.target for task in program.graph.tasks} & UPDATES, program.source


def written_values_are_read_later(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    values = y[0] + row
    y = y.select_scatter(values, 0, 0).select_scatter(row, 0, 0)
    return y, values.exp()


def a_changed_view_is_read_later(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    view = y[1:3].select_scatter(row, 0, 0)
    y = y.slice_scatter(view, 0, 1, 3).select_scatter(row * 3, 0, 1)
    return y, view.exp()


def rows_are_added_to_those_before(x: Tensor, row: Tensor) -> Any:
    y = x * 2
    return y.slice_scatter(y[:3] + y[1:], 0, 0, 3) + row


def a_sum_is_rounded(x: Tensor, row: Tensor) -> Any:
    y = (x * 9).long()
    return y.select_scatter(y[0] + row, 0, 0)


def places_in_themselves(x: Tensor, row: Tensor) -> Any:
    """Functional updates of a part that read the part as their values."""
    order, half = torch.tensor([1, 0]), x[:2] > row
    places = torch.stack([order] * 4, 1)
    updates: list[Callable[[Tensor], Tensor]] = [
        lambda part: part.scatter(0, places, part),
        lambda part: part.scatter_add(0, places, part),
        lambda part: part.index_copy(0, order, part),
        lambda part: part.index_add(0, order, part),
        lambda part: part.index_put((order,), part),
        lambda part: part.masked_scatter(half, part),
    ]
    return [(y := x * i).slice_scatter(f(y[:2]), 0, 0, 2) for i, f in enumerate(updates, 2)]


@pytest.mark.parametrize(
    "function",
    [
        places_in_themselves,
        *(written_values_are_read_later, a_changed_view_is_read_later),
        *(rows_are_added_to_those_before, a_sum_is_rounded),
    ],
    ids=lambda function: function.__name__,
)
def test_values_that_are_written_are_their_own_if(function: Program) -> None:
    x, row = torch.randn(4, 4), torch.randn(4)
    compiled = torch.compile(function, backend="nimble")
    with torch.no_grad():
        assert_same_bits(compiled(x, row), function(x, row))


def test_a_value_that_was_computed_in_time_is_written_late() -> None:
    function = old_value_is_read_before_it_is_written_by_what_was_computed_before
    x, row = torch.randn(4, 4), torch.randn(4)
    compiled = torch.compile(function, backend="nimble")
    with torch.no_grad():
        assert_same_bits(compiled(x, row), function(x, row))
    (program,) = nimble_fx.programs()
    targets = [task.target for task in program.graph.launching]
    assert aten.add_.Tensor not in targets
    assert targets[-1] is aten.copy_.default


def test_the_caller_may_write_to_an_updated_view_before_the_backward() -> None:
    def gradient(function: Program) -> Tensor | None:
        x = torch.eye(4, requires_grad=True)
        function(x, x[2]).mul_(2).sum().backward()
        return x.grad

    function = it_is_a_view_and_returned
    assert_same(gradient(torch.compile(function, backend="nimble")), gradient(function))


KEPT: list[Tensor] = []


@torch.library.custom_op("reinplace_updates::keep", mutates_args=())
def keep(x: Tensor) -> Tensor:
    KEPT.append(x)
    return x.clone()


keep.register_fake(torch.empty_like)


def test_a_custom_operator_keeps_what_it_read() -> None:
    def function(x: Tensor, row: Tensor) -> Any:
        y = x * 2
        return keep(y), y.select_scatter(row, 0, 1)

    x, row = torch.randn(4, 4), torch.randn(4)
    KEPT.clear()
    with torch.no_grad():
        torch.compile(function, backend="nimble")(x, row)
    assert KEPT
    for each in KEPT:
        assert_same(each, x * 2)
