"""Programs that cannot be captured are refused by name, and run unfrozen with eager's results."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nimble_fx
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.task_graph import Task
from nimble_fx.ir.types import TensorType
from nimble_fx.runtime.capture.checks import check_capturable, why_not_captured
from nimble_fx.torch_internals.operators import arguments_by_name
from tests.support.replaying import ReplayingDevice
from tests.support.schedules import schedule_of


def test_nothing_is_lost_where_there_is_why_not_captured() -> None:
    launches, views = (
        schedule_of(torch.exp, torch.zeros(2)),
        schedule_of(torch.t, torch.zeros(2, 2)),
    )
    assert why_not_captured(launches, Cpu()) == "cpu has no CUDA graphs"
    assert why_not_captured(views, ReplayingDevice()) == "it launches nothing"
    assert why_not_captured(launches, ReplayingDevice()) is None


def test_what_rules_out_a_capture_is_reported_and_what_gains_nothing_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, reported = ReplayingDevice(), list[UnsupportedError]()
    launches, views = schedule_of(torch.exp, torch.zeros(2)), schedule_of(torch.t, torch.zeros(2))
    monkeypatch.setattr(device, "why_not_capture", "it has another allocator")
    for graph, runtime in ((views, device), (launches, Cpu()), (launches, device)):
        why_not_captured(graph, runtime, reported.append)
    assert list(map(str, reported)) == ["it has another allocator"]


@pytest.mark.parametrize(
    "tag",
    [
        torch.Tag.cudagraph_unsafe,
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
    ],
)
def test_operators_that_cannot_be_captured_are_refused_by_name(tag: torch.Tag) -> None:
    graph, tags = schedule_of(torch.exp, torch.zeros(2)), [tag]
    check_capturable(graph)
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("unsafe(Tensor x) -> Tensor", tags=tags)
        op = torch.ops.nimble_tests.unsafe.default
        tasks = tuple(replace(task, target=op) for task in graph.tasks)
        with pytest.raises(UnsupportedError, match=r"exp \(nimble_tests.unsafe") as refused:
            check_capturable(replace(graph, tasks=tasks))
    assert refused.value.node == "exp"


INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "read": lambda x, i: x[:, i] + 1,
    "read unsafely": lambda x, i: torch.ops.aten._unsafe_index(x, [None, i]) + 1,
    "written": lambda x, i: torch.ops.aten.index_put(x, [None, i], x[:, :2]) + 1,
    "written unsafely": lambda x, i: torch.ops.aten._unsafe_index_put(x, [None, i], x[:, :2]) + 1,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("function", INDEXED.values(), ids=INDEXED)
def test_the_host_waits_for_masks_and_for_no_other_indices(
    function: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    graph = schedule_of(function, torch.zeros(2, 3), torch.zeros(2).long())
    x, i = graph.inputs
    assert isinstance(i.type, TensorType)
    graph = replace(graph, inputs=(x, replace(i, type=replace(i.type, dtype=dtype))))
    if dtype in (torch.bool, torch.uint8):
        with pytest.raises(UnsupportedError, match=r"index.* .*the host waits"):
            check_capturable(graph)
    else:
        check_capturable(graph)


def test_the_host_waits_for_what_an_inverse_says_of_its_matrix() -> None:
    with pytest.raises(UnsupportedError, match=r"_linalg_check_errors .*the host waits"):
        check_capturable(schedule_of(torch.linalg.inv, torch.eye(2)))


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (lambda x: x.as_strided((2,), (1,), 6) * 1, "around an input"),
        (lambda x: x.as_strided((2,), (1,)) * 1, None),
        (lambda x: x.as_strided_scatter(x[:2], (2,), (1,), 6), "around an input"),
        (lambda x: x.as_strided_scatter(x[:2], (2,), (1,)), None),
        (lambda x: x.slice_scatter(x[:2], 0, 1, 3).as_strided((2,), (1,), 2), "around an input"),
        (lambda x: x[x > 1], "the host waits"),
        (lambda x: x[x.long()], None),
    ],
)
def test_arguments_by_keyword_are_checked_like_those_by_position(
    function: Callable[[Tensor], Tensor], refused: str | None
) -> None:
    graph = schedule_of(function, torch.zeros(9))

    def by_keyword(task: Task) -> Task:
        named = arguments_by_name(task.target, task.args, dict(task.kwargs))  # type: ignore[arg-type]
        return task.updated(args=(), kwargs=tuple(named.items()))

    for same in (graph, graph.replace_tasks(map(by_keyword, graph.tasks))):
        if refused is None:
            check_capturable(same)
        else:
            with pytest.raises(UnsupportedError, match=refused):
                check_capturable(same)


BASE = torch.arange(60.0)
LOOKS: dict[str, Callable[[Tensor], Tensor]] = {
    "from the storage's beginning": lambda x: x.as_strided((2,), (1,), 0) * 1,
    "behind the view's beginning": lambda x: x.as_strided((2,), (1,), 6) * 1,
    "from the view's beginning": lambda x: x.as_strided((2,), (1,)) * 1,
    "through a view": lambda x: x[1:].as_strided((2,), (1,)) * 1,
    "of every other element": lambda x: x.as_strided((2,), (2 * x.stride(0),)) * 1,
    "of something new": lambda x: (x + 1).as_strided((2,), (1,), 1) * 1,
    "as a copy": lambda x: torch.as_strided_copy(x, (2,), (2,), 1) * 1,
    "where it is written": lambda x: torch.as_strided_scatter(x, -BASE[:2], (2,), (1,), 1) * 1,
    "in a copy of the storage": lambda x: (
        torch.slice_scatter(x, x[:2] * 0, 0, 1, 3).as_strided((2,), (1,), 2) * 1
    ),
    "in a copy of a copy": lambda x: (
        x.select_scatter(x[0] * 2, 0, 1)
        .as_strided_scatter(x[:2], (2,), (1,), 2)
        .select_scatter(x[1], 0, 2)
        .as_strided((2,), (1,), 1)
        * 1
    ),
    "past the view's end": lambda x: x.as_strided((9,), (1,)) * 1,
}


@given(st.sampled_from(sorted(LOOKS)), st.integers(0, 8), st.integers(1, 3), st.booleans())
def test_whatever_is_seen_of_the_memory_around_an_input_is_eagers(
    look: str, offset: int, step: int, is_dynamic: bool
) -> None:
    torch.compiler.reset()
    function, x = LOOKS[look], BASE[offset : offset + 5 * step : step]
    options: dict[str, Any] = {"device": "virtual", "on_fallback": "silent"}
    with torch.no_grad():
        compiled = torch.compile(function, backend="nimble", dynamic=is_dynamic, options=options)
        for _ in range(3):
            assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize("look", ["from the view's beginning", "through a view"])
@pytest.mark.parametrize(
    "x",
    [BASE[3:8], BASE[:6].view(2, 3), BASE[:6].view(2, 3).t(), BASE[:6].as_strided((3, 1), (1, 7))],
)
def test_what_stays_within_a_dense_input_is_frozen(x: Tensor, look: str) -> None:
    with torch.no_grad():
        torch.compile(LOOKS[look], backend="nimble", options={"device": "virtual"})(x)
    (program,) = nimble_fx.programs()
    assert program.status.frozen


def test_what_repeats_elements_costs_no_more() -> None:
    """A view of 2**60 elements that are all one, or of too many that overlap."""
    x = BASE[:48].view(4, 12)[:, :6]
    check_capturable(schedule_of(lambda x: x.as_strided((2**30, 2**30), (0, 0))[:2, :2] * 1, x))
    even = torch.zeros(2**16, 2)[:, 0]
    graph = schedule_of(lambda x: x.as_strided((2**14, 2**14), (2, 2)).sum(), even)
    with pytest.raises(UnsupportedError, match="around an input"):
        check_capturable(graph)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (1, 6), (2, 2), (4, 3), (2, 6)])
@pytest.mark.parametrize("strides", [(12, 1), (24, 1), (12, 2), (1, 12), (0, 1), (6, 1), (1, 1)])
def test_so_is_what_stays_within_an_input_with_gaps(
    sizes: tuple[int, int], strides: tuple[int, int]
) -> None:
    x = torch.arange(90.0)[:48].view(4, 12)[:, :6]

    def function(x: Tensor) -> Tensor:
        return x.as_strided(sizes, strides) * 1

    places = {i * strides[0] + j * strides[1] for i in range(sizes[0]) for j in range(sizes[1])}
    options: dict[str, Any] = {"device": "virtual", "on_fallback": "silent"}
    with torch.no_grad():
        assert torch.equal(
            torch.compile(function, backend="nimble", options=options)(x), function(x)
        )
    (program,) = nimble_fx.programs()
    assert program.status.frozen == places.issubset(x.flatten().int().tolist())


@pytest.mark.parametrize(
    ("x", "frozen"),
    [
        (BASE[:6].view(2, 3), True),
        (BASE[:24].view(2, 3, 4).permute(2, 0, 1), True),
        (BASE[:24].view(2, 12)[:, :6], False),
    ],
)
def test_of_symbolic_sizes_what_is_dense_for_all_is_frozen(x: Tensor, frozen: bool) -> None:
    look = LOOKS["from the view's beginning"]
    options: dict[str, Any] = {"device": "virtual", "on_fallback": "silent"}
    with torch.no_grad():
        torch.compile(look, backend="nimble", dynamic=True, options=options)(x)
    (program,) = nimble_fx.programs()
    assert program.sizes
    assert program.status.frozen == frozen


@pytest.mark.parametrize(
    ("x", "look"),
    [(BASE[3:8], "behind the view's beginning"), (BASE[:9:2], "from the view's beginning")],
)
def test_what_may_be_around_an_input_is_refused_with_the_users_line(x: Tensor, look: str) -> None:
    graph = nimble_fx.plan(LOOKS[look], x).graph
    with pytest.raises(UnsupportedError, match=r"around an input .*\[.*test_checks.py") as refused:
        check_capturable(graph)
    assert refused.value.node == "as_strided"
    parameters = tuple(replace(value, static=True) for value in graph.inputs)
    check_capturable(replace(graph, inputs=parameters))  # which are read where they are
