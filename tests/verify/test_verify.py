"""The verifier against an oracle, on legal and on broken schedules."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Input, Ref, Source, Task, TaskGraph
from nimble_fx.verify import verify
from tests.strategies import SCALAR, task_graphs
from tests.support.judges import oracle_accepts, verifier_accepts
from tests.support.mutants import edited
from tests.support.oracle import races
from tests.support.schedules import (
    branchy,
    schedule_of,
    scheduled,
    schedules,
    traced,
    waiting_schedules,
)


@given(schedules())
def test_every_schedule_that_the_passes_make_is_legal(graph: TaskGraph) -> None:
    verify(graph)
    assert oracle_accepts(graph)


@given(waiting_schedules())
def test_a_deleted_wait_is_caught_exactly_if_something_races(graph: TaskGraph) -> None:
    for task in graph.tasks:
        for name in task.waits:
            waits = tuple(other for other in task.waits if other != name)
            broken = edited(graph, task.name, waits=waits)
            assert verifier_accepts(broken) == oracle_accepts(broken)


@given(task_graphs())
def test_no_wait_of_policy_nimble_can_be_spared(graph: TaskGraph) -> None:
    graph = scheduled(graph)
    for task in graph.tasks:
        for name in task.waits:
            broken = edited(graph, task.name, waits=tuple(n for n in task.waits if n != name))
            real_orders = races(broken)
            assert real_orders or is_order_of_a_rider(graph, name, task.name)
            assert verifier_accepts(broken) == (not real_orders and oracle_accepts(broken))


def is_order_of_a_rider(graph: TaskGraph, first: str, second: str) -> bool:
    """Whether the order was added by chain-bookkeeping and is no hazard."""
    one, two = graph.by_name[first], graph.by_name[second]
    touched = {*two.reads, *two.writes}
    return not (touched & set(one.writes) or set(two.writes) & set(one.reads))


@given(waiting_schedules(), st.data())
def test_a_value_freed_elsewhere_is_caught_exactly_if_it_is_unsafe(
    graph: TaskGraph, data: st.DataObject
) -> None:
    freed = [(task.name, name) for task in graph.tasks for name in task.frees]
    assume(freed)
    at, name = data.draw(st.sampled_from(freed))
    made = next((i for i, task in enumerate(graph.tasks) if task.name == name), 0)
    elsewhere = data.draw(st.sampled_from(graph.tasks[made:]))
    moved = freed_at(graph, name, at, elsewhere.name)
    assert verifier_accepts(moved) == oracle_accepts(moved)


@given(schedules())
def test_an_input_freed_elsewhere_is_caught_exactly_if_it_is_unsafe(graph: TaskGraph) -> None:
    """The caller allocated it, so that work on any stream may get its memory."""
    name = graph.inputs[0].name
    for at in (task.name for task in graph.tasks if name in task.frees):
        for elsewhere in graph.tasks:
            moved = freed_at(graph, name, at, elsewhere.name)
            assert verifier_accepts(moved) == oracle_accepts(moved)


def freed_at(graph: TaskGraph, name: str, before: str, after: str) -> TaskGraph:
    """The graph in which another task frees a value."""
    frees = tuple(n for n in graph.by_name[before].frees if n != name)
    graph = edited(graph, before, frees=frees)
    return edited(graph, after, frees=(*graph.by_name[after].frees, name))


@given(waiting_schedules(), st.data())
def test_a_task_on_another_stream_is_caught_exactly_if_something_races(
    graph: TaskGraph, data: st.DataObject
) -> None:
    task = data.draw(st.sampled_from(graph.launching))
    stream = data.draw(st.integers(0, graph.n_streams - 1))
    moved = edited(graph, task.name, stream=stream)
    if moved.n_streams == graph.n_streams:
        assert verifier_accepts(moved) == oracle_accepts(moved)


@given(schedules())
def test_random_draws_out_of_program_order_are_caught(graph: TaskGraph) -> None:
    draws = [task for task in graph.tasks if task.ordered]
    assume(len(draws) > 1)
    first, last = draws[0], draws[-1]
    swapped = edited(edited(graph, first.name, index=last.index), last.name, index=first.index)
    with pytest.raises(ScheduleError):
        verify(swapped)


@pytest.mark.parametrize("urgent", [2, -1, True, 0.0, "0", []])
def test_the_urgent_stream_is_one_of_the_schedules(urgent: Any) -> None:
    graph = branchy()
    for stream in (None, 0, 1):
        verify(replace(graph, urgent=stream))
    with pytest.raises(ScheduleError, match=r"its urgent stream is .*, not one of its 2"):
        verify(replace(graph, urgent=urgent))


def test_the_message_names_both_tasks_their_streams_the_storage_and_the_line() -> None:
    source = Source("model.py", 7, "relu(x) + sigmoid(x)")
    graph = edited(branchy(), "sigmoid", source=source)
    with pytest.raises(ScheduleError) as caught:
        verify(edited(graph, "add", waits=()))
    assert "race on storage sigmoid" in str(caught.value)
    assert "add (stream 0" in str(caught.value)
    assert "sigmoid (stream 1, model.py:7: relu(x) + sigmoid(x))" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "relu"}, "two values are named relu"),
        ({"args": (Ref("nothing"),)}, "which is not defined before it"),
        ({"stream": None}, "without a stream"),
        ({"stream": 5}, "streams"),
        ({"waits": ("add",)}, "which is launched later"),
        ({"frees": ("nothing",)}, "which is not legal"),
    ],
)
def test_malformed_schedules_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify(edited(branchy(), "sigmoid", **changes))


def test_a_host_only_task_on_a_stream_is_refused() -> None:
    graph = branchy()
    view = Task("view", graph.tasks[0].target, (Ref("add"),), type=SCALAR, index=9, stream=0)
    with pytest.raises(ScheduleError, match="launches nothing"):
        verify(replace(graph, tasks=(*graph.tasks, view)))


def test_a_lost_task_is_caught_by_comparison_with_the_program() -> None:
    graph = branchy()
    verify(graph, traced=graph)
    smaller = replace(graph, tasks=graph.tasks[:-1], outputs=())
    verify(smaller)
    with pytest.raises(ScheduleError, match="loses or adds tasks or outputs"):
        verify(smaller, traced=replace(graph, outputs=()))


@pytest.mark.parametrize(("outputs", "others"), [((1,), (True,)), ((0.0,), (-0.0,))])
def test_an_output_that_is_equal_but_not_the_same_is_caught(outputs: Any, others: Any) -> None:
    graph, other = (replace(branchy(), outputs=each) for each in (outputs, others))
    verify(graph, traced=graph)
    with pytest.raises(ScheduleError, match="loses or adds tasks or outputs"):
        verify(other, traced=graph)


def test_a_changed_task_is_caught_by_comparison_with_the_program() -> None:
    graph = branchy()
    changed = edited(graph, "relu", target=graph.by_name["sigmoid"].target)
    with pytest.raises(ScheduleError, match="changes target of relu"):
        verify(changed, traced=graph)


@pytest.mark.parametrize("hidden", ["reads", "writes"])
def test_a_task_that_hides_what_it_accesses_is_refused(hidden: str) -> None:
    with pytest.raises(ScheduleError, match="does not declare that it accesses"):
        verify(edited(branchy(), "add", **{hidden: ()}))


def test_tasks_that_share_an_index_are_refused() -> None:
    graph = branchy()
    with pytest.raises(ScheduleError, match="share an index"):
        verify(edited(graph, "sigmoid", index=graph.by_name["relu"].index))


def test_memory_of_the_callers_stream_is_not_given_back_before_a_side_stream_is_done() -> None:
    graph = branchy()
    add = graph.by_name["add"]
    assert "x_1" in add.frees
    early = edited(graph, "add", frees=tuple(name for name in add.frees if name != "x_1"))
    early = edited(early, "sigmoid", frees=("x_1",))
    with pytest.raises(ScheduleError, match=r"x_1 is freed after sigmoid.*before sigmoid"):
        verify(early)


def test_an_input_that_shares_memory_with_another_is_not_freed() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.exp().sin() + y.cos()

    parts = torch.randn(4)
    graph = schedule_of(program, parts[:2], parts[2:])
    verify(graph)
    with pytest.raises(ScheduleError, match="shares memory with another input"):
        verify(edited(graph, "add", frees=(*graph.by_name["add"].frees, graph.inputs[0].name)))


def test_a_stream_that_is_not_joined_is_caught() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), x.sin()

    graph = schedule_of(program, torch.randn(2))
    assert graph.joins == ("sin",)
    verify(graph)
    vars(graph)["joins"] = ()
    with pytest.raises(ScheduleError, match=r"sin \(stream 1\) does not happen before the end"):
        verify(graph)


def test_a_stream_that_does_not_fork_is_caught() -> None:
    graph = branchy()
    assert graph.forks == ("sigmoid",)
    vars(graph)["forks"] = ()
    with pytest.raises(ScheduleError, match=r"sigmoid .* starts a stream that never forks"):
        verify(graph)


def test_returning_what_is_not_there_is_refused() -> None:
    with pytest.raises(ScheduleError, match="returns"):
        verify(replace(branchy(), outputs=(Ref("nothing"),)))


def test_returning_what_was_freed_is_refused() -> None:
    with pytest.raises(ScheduleError, match="has been freed"):
        verify(replace(branchy(), outputs=(Ref("relu"),)))


def test_a_schedule_that_is_given_or_returns_something_else_is_refused() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) - torch.sigmoid(y)

    trace = traced(program, torch.randn(2), torch.randn(2)).graph
    graph = scheduled(trace)
    verify(graph, trace)
    for changed in (
        replace(graph, inputs=graph.inputs[::-1]),
        replace(graph, inputs=(replace(graph.inputs[0], static=True), *graph.inputs[1:])),
        replace(graph, outputs=(Ref("sub"), Ref("sub"))),
    ):
        with pytest.raises(ScheduleError, match=r"changes the inputs|loses or adds"):
            verify(changed, trace)


@pytest.mark.parametrize(
    ("names", "message"), [(("x",), "x is freed after b"), (("x", "y"), "shares memory with")]
)
def test_an_input_that_nobody_uses_keeps_no_memory(names: tuple[str, ...], message: str) -> None:
    """Its last reference goes as the call begins, though it lies in the memory of another."""
    tasks = (
        Task("b", torch.ops.aten.sigmoid.default, (Ref("x"),), index=0, reads=("x",),
             writes=("b",), allocates=("b",), holds=("b",), stream=1, frees=("x",)),
        Task("c", torch.ops.aten.full.default, ((2,), 1.0), index=1, writes=("c",),
             allocates=("c",), holds=("c",), stream=0),
        Task("d", torch.ops.aten.add.Tensor, (Ref("c"), Ref("b")), index=2, reads=("c", "b"),
             writes=("d",), allocates=("d",), holds=("d",), stream=0, waits=("b",)),
    )  # fmt: skip
    inputs = tuple(Input(name, SCALAR, ("x",)) for name in names)
    with pytest.raises(ScheduleError, match=message):
        verify(TaskGraph("g", inputs, (), tasks, (Ref("d"),)))
