"""Assignments to views launch the same kernels as in eager, and copy no whole tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import nimble_fx
from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from tests.rewrites.reinplace.test_reinplace_updates import COPY_THE_WHOLE, rows
from tests.support.bits import assert_same_bits
from tests.support.eager import assert_same
from tests.support.schedules import aten_graph

aten = torch.ops.aten


class Launches(TorchDispatchMode):
    """Lists the operators that compute something: all that return no views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func.is_view:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def border(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:-1, 2:] = 0
    y[0] += 1
    return y


def circular(x: Tensor) -> Tensor:
    return F.pad(x[None], (2, 1, 1, 2), mode="circular")


def triangle(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(4):
        y[:, i, i:] = x[:, 3, i:] * i
    return y.transpose(1, 2)


def flattened(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1)[3:7] = 5
    y.transpose(0, 2)[1] -= x.transpose(0, 2)[0]
    return y


def masked(x: Tensor) -> Tensor:
    y = x * 2
    y[x > 0] = -1
    y[..., 0][:, 1] = y[..., 1][:, 0]
    return y


def swapped(x: Tensor) -> Tensor:
    y = x * 2
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


def doubled(x: Tensor) -> Tensor:
    y = x * 2
    y[0] += y[0]
    return y


ASSIGNMENTS = [doubled, border, circular, triangle, flattened, masked, swapped]


@pytest.mark.parametrize("function", ASSIGNMENTS, ids=lambda function: function.__name__)
def test_assignments_to_views_launch_no_more_than_in_eager(
    function: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(3, 4, 6)
    compiled = torch.compile(function, backend="nimble", dynamic=False)
    with torch.no_grad(), Launches() as launches:
        expected = function(x)
    with torch.no_grad():
        assert_same_bits(compiled(x), expected)
    (program,) = nimble_fx.programs()
    assert len(program.graph.launching) <= len(launches.names), program.source


@pytest.mark.parametrize("function", ASSIGNMENTS, ids=lambda function: function.__name__)
def test_assignments_to_views_of_any_size_copy_nothing_whole(
    function: Callable[[Tensor], Tensor],
) -> None:
    compiled = torch.compile(function, backend="nimble", dynamic=True)
    with torch.no_grad():
        for shape in ((3, 4, 6), (5, 4, 7)):
            x = torch.randn(shape)
            assert_same_bits(compiled(x), function(x))
    for program in nimble_fx.programs():
        assert not {task.target for task in program.graph.tasks} & COPY_THE_WHOLE, program.source


@pytest.mark.parametrize("function", ASSIGNMENTS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_assignments_have_the_same_gradients(
    function: Callable[[Tensor], Tensor], options: dict[str, Any]
) -> None:
    compiled = torch.compile(lambda x: function(x.sin()), backend="nimble", options=options)
    x = torch.randn(3, 4, 6, requires_grad=True)
    expected = x.detach().clone().requires_grad_()
    for _ in range(2):
        ours, theirs = compiled(x), function(expected.sin())
        assert_same(ours, theirs)
        ours.square().sum().backward()
        theirs.square().sum().backward()
        assert_same(x.grad, expected.grad)
    for program in nimble_fx.programs():
        targets = {task.target for task in program.graph.tasks}
        assert not targets & {aten.copy.default, *COPY_THE_WHOLE}, program.source


def test_what_cannot_be_scheduled_updates_its_inputs_in_place_too() -> None:
    gm = aten_graph(rows, torch.randn(4, 3), torch.randn(2, 3))
    cache, x = torch.randn(4, 3), torch.randn(2, 3)
    with Launches() as launches:
        reinplace_updates(gm)(cache, x)
    assert launches.names == ["aten::copy_", "aten::exp"]


def test_a_graph_without_updates_is_the_graph_itself() -> None:
    gm = aten_graph(lambda x: x.exp()[0], torch.randn(2))
    assert reinplace_updates(gm) is gm


class Cache(nn.Module):
    """Keeps what it has seen in a buffer, as a language model does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1, 8, 3))

    def forward(self, x: Tensor, at: int) -> Tensor:
        self.seen[:, at : at + x.shape[1]] = x
        return self.seen[:, : at + x.shape[1]].sum(1)


def test_a_cache_in_a_buffer_is_written_where_it_is_at_each_place() -> None:
    ours, theirs = Cache(), Cache()
    compiled = torch.compile(ours, backend="nimble")
    with torch.no_grad():
        for at in range(5):
            x = torch.randn(1, 2, 3)
            assert_same(compiled(x, at), theirs(x, at))
            assert_same(ours.seen, theirs.seen)
    for program in nimble_fx.programs():
        assert not {task.target for task in program.graph.tasks} & COPY_THE_WHOLE, program.source


def test_a_sum_of_another_type_than_the_input_is_converted_as_it_is_copied_back() -> None:
    def add(counts: Tensor, x: Tensor) -> None:
        counts.copy_(counts + x)

    compiled = torch.compile(add, backend="nimble")
    ours, theirs, x = torch.arange(4), torch.arange(4), torch.rand(4) + 0.5
    with torch.no_grad():
        compiled(ours, x)
        add(theirs, x)
    assert_same_bits(ours, theirs)


def test_an_average_in_a_buffer_is_updated_in_place() -> None:
    def update(average: Tensor, x: Tensor) -> None:
        average.mul_(0.9).add_(x)

    compiled = torch.compile(update, backend="nimble")
    ours, theirs, x = torch.ones(4), torch.ones(4), torch.rand(4)
    with torch.no_grad():
        for _ in range(2):
            compiled(ours, x)
            update(theirs, x)
            assert_same_bits(ours, theirs)
    (program,) = nimble_fx.programs()
    targets = [task.target for task in program.graph.launching]
    assert targets == [aten.mul_.Tensor, aten.add_.Tensor]
