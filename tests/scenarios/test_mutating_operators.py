"""Custom operators that write to their arguments, as those of paged KV caches do."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import FallbackError, NimbleWarning

pytestmark = pytest.mark.slow

aten = torch.ops.aten
VIRTUAL: dict[str, Any] = {"device": "virtual", "policy": "nimble"}


@torch.library.custom_op("test_mutating_operators::push", mutates_args=("rows",))
def push(rows: Tensor, row: Tensor) -> None:
    """Puts a row before the others, of which the last one falls out."""
    rows.copy_(torch.roll(rows, 1, 0))
    rows[0] = row


@push.register_fake
def _(rows: Tensor, row: Tensor) -> None:
    pass


class Remembers(nn.Module):
    """Two branches beside a buffer that the operator writes to, between two reads of it."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("rows", torch.zeros(3, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.rows.sum(0)
        push(self.rows, torch.tanh(x).mean(0))
        after = self.rows * 2
        push(self.rows, before)
        branches: Tensor = self.left(x).relu() + self.right(x).sigmoid()
        return branches + after.mean(0), before


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("device", [{}, VIRTUAL], ids=str)
@pytest.mark.parametrize("kernels", ["aten", "inductor", "auto"])
@pytest.mark.filterwarnings("ignore:.*push.* writes to its arguments")
def test_they_write_as_often_and_at_the_same_place_as_in_eager(
    kernels: str, device: dict[str, Any], training: bool
) -> None:
    model = Remembers().train(training)
    eager = copy.deepcopy(model)
    options: dict[str, Any] = {"kernels": kernels, **device}
    compiled = torch.compile(model, backend="nimble", options=options)
    for _ in range(3):
        x = torch.randn(2, 8)
        with torch.set_grad_enabled(training):
            ours, expected = compiled(x), eager(x)
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(model.rows, eager.rows)
        if training:
            for result in (ours, expected):
                result[0].square().sum().backward()
    torch.testing.assert_close(
        [p.grad for p in model.parameters()], [p.grad for p in eager.parameters()]
    )


def test_they_are_tasks_on_several_streams_without_a_copy() -> None:
    with torch.no_grad():
        torch.compile(Remembers().eval(), backend="nimble", options=VIRTUAL)(torch.randn(2, 8))
    (program,) = nimble_fx.programs()
    targets = [task.target for task in program.graph.launching]
    assert targets.count(torch.ops.test_mutating_operators.push.default) == 2
    assert program.graph.n_streams > 1
    assert not {aten.clone.default, aten.copy_.default}.intersection(targets)


@pytest.mark.parametrize("policy", ["auto", "serial", "nimble"])
@pytest.mark.parametrize("kernels", ["inductor", "auto"])
def test_inductors_kernels_are_left_out_with_one_warning(kernels: str, policy: str) -> None:
    options: dict[str, Any] = {"kernels": kernels, "policy": policy}
    with torch.no_grad(), pytest.warns(NimbleWarning) as warned:
        torch.compile(Remembers().eval(), backend="nimble", options=options)(torch.randn(2, 8))
    (warning,) = warned
    assert re.search(r"push.* writes to its arguments.*push\(self.rows", str(warning.message))
    assert len(nimble_fx.programs()) == 1


@pytest.mark.filterwarnings("ignore:.*as traced, without a schedule.*push")
@pytest.mark.parametrize("strided", [torch.as_strided, Tensor.as_strided])
def test_a_view_at_an_offset_in_the_memory_stays_there(strided: Any) -> None:
    def program(x: Tensor, row: Tensor) -> Tensor:
        push(strided(x, (2, 2), (4, 1), 1), row)
        return x * 2

    compiled = torch.compile(program, backend="nimble")
    for begin in (0, 8, 3):
        ours, expected = torch.arange(40.0), torch.arange(40.0)
        x, y = (each[begin : begin + 16].view(4, 4) for each in (ours, expected))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, torch.ones(2)), program(y, torch.ones(2)))
        torch.testing.assert_close(x, y)  # PyTorch loses what is written elsewhere


def into_a_strided_view(x: Tensor, row: Tensor) -> Tensor:
    push(x.as_strided((2, 2), (4, 1), 1), row)
    return x * 2


def into_a_part_of_unknown_place(x: Tensor, row: Tensor) -> Tensor:
    n = x.shape[0] // 3
    push(x[n : n + 2, : x.shape[1] - 2].t(), row)
    return x * 2


def into_a_tensor_with_gaps(x: Tensor, row: Tensor) -> Tensor:
    push(x, row)
    return x * 2


OBSTACLES: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "push.*: it writes to a view, in a model that calls as_strided": (
        into_a_strided_view, torch.ones(4, 4),
    ),
    "push.*: it writes to a view whose place in its base is not known": (
        into_a_part_of_unknown_place, torch.ones(6, 4),
    ),
    "push.*: it writes to a tensor of symbolic sizes with gaps": (
        into_a_tensor_with_gaps, torch.ones(4, 6)[:, 1:3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_keeps_a_call_from_being_scheduled_is_said(obstacle: str) -> None:
    program, x = OBSTACLES[obstacle]
    options: dict[str, Any] = {"on_fallback": "error"}
    compiled = torch.compile(program, backend="nimble", options=options, dynamic=True)
    with torch.no_grad(), pytest.raises(FallbackError, match=obstacle):
        compiled(x, torch.ones(2))


class Duplicates(nn.Module):
    """Writes to one of two equal tensors, of which PyTorch computes one in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        one, other = x * 2, x * 2
        push(one, self.weight.detach())
        return (one + other) * self.weight


class OutBuffer(nn.Module):
    """Folds weights before and after an operator that writes to what the graph allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.after = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.zeros(5, 4)
        y: Tensor = self.before(x).relu()
        push(rows, y.mean((0, 2, 3)))
        push(rows[1:], self.after(rows)[0])
        result: Tensor = self.after(rows)
        return result


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("device", [{}, VIRTUAL], ids=str)
@pytest.mark.parametrize("model", [Duplicates(), OutBuffer()], ids=lambda m: type(m).__name__)
def test_they_write_to_what_the_graph_computes(
    model: nn.Module, device: dict[str, Any], training: bool
) -> None:
    ours = copy.deepcopy(model).train(training)
    eager = copy.deepcopy(ours)
    compiled = torch.compile(ours, backend="nimble", options=device)
    for _ in range(3):
        x = torch.randn(5, 8) if isinstance(model, Duplicates) else torch.randn(2, 3, 6, 6)
        with torch.set_grad_enabled(training):
            results = compiled(x), eager(x)
        torch.testing.assert_close(*results)
        if training:
            for result in results:
                result.square().sum().backward()
    torch.testing.assert_close(
        [p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()]
    )


class Cached(nn.Module):
    """A cache that the caller owns, of which an operator fills the next page."""

    def forward(self, cache: Tensor, x: Tensor, page: Tensor) -> Tensor:
        put(cache[0], x, page)
        put(cache[1], x * 2, page)
        return cache.sum((0, 2, 3))


@torch.library.custom_op("test_mutating_operators::put", mutates_args=("pages",))
def put(pages: Tensor, x: Tensor, page: Tensor) -> None:
    """Writes to the page with an index that the host does not know."""
    pages.index_copy_(0, page, x[None])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("options", [{}, VIRTUAL], ids=str)
def test_a_paged_cache_is_written_where_it_is(
    options: dict[str, Any], dynamic: bool | None
) -> None:
    assert_fills_pages(options, dynamic, "cpu")


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.gpu
def test_a_paged_cache_on_a_gpu_is_written_where_it_is(dynamic: bool | None) -> None:
    assert_fills_pages({"policy": "nimble"}, dynamic, "cuda")


def assert_fills_pages(options: dict[str, Any], dynamic: bool | None, device: str) -> None:
    """Fills pages of caches of two sizes as eager does, without a copy of a cache."""
    compiled = torch.compile(Cached(), backend="nimble", options=options, dynamic=dynamic)
    for n_pages in (3, 3, 5, 5):
        ours = torch.zeros(2, n_pages, 4, 4, device=device)
        expected = ours.clone()
        for page in (2, 0):
            x, index = torch.randn(4, 4, device=device), torch.tensor([page], device=device)
            with torch.no_grad():
                results = compiled(ours, x, index), Cached()(expected, x, index)
            torch.testing.assert_close(*results)
            torch.testing.assert_close(ours, expected)
    for program in nimble_fx.programs():
        targets = {task.target for task in program.graph.launching}
        assert not {aten.clone.default, aten.copy_.default}.intersection(targets)
