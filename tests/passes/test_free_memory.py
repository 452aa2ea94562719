"""Frees: safe, and as early as safety allows."""

from dataclasses import replace

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.ir.task_graph import TaskGraph, ref_names
from nimble_fx.verify import verify
from tests.support.oracle import unsafe_frees, uses_after_free
from tests.support.schedules import schedule_of, schedules, waiting_schedules


@given(waiting_schedules())
def test_no_memory_is_handed_out_while_it_may_be_in_use(graph: TaskGraph) -> None:
    assert not unsafe_frees(graph)
    assert not uses_after_free(graph)


@given(schedules())
def test_outputs_and_parameters_are_never_dropped_and_nothing_twice(graph: TaskGraph) -> None:
    dropped = [name for task in graph.tasks for name in task.frees]
    kept = {value.name for value in graph.inputs if value.static} | set(ref_names(graph.outputs))
    assert len(set(dropped)) == len(dropped)
    assert kept.isdisjoint(dropped)


@given(waiting_schedules(), st.data())
def test_no_memory_could_be_handed_out_earlier(graph: TaskGraph, data: st.DataObject) -> None:
    drops = [(i, name) for i, task in enumerate(graph.tasks) for name in task.frees]
    movable = [(i, name) for i, name in drops if i > 0 and graph.tasks[i].name != name]
    assume(movable)
    i, name = data.draw(st.sampled_from(movable))
    tasks = list(graph.tasks)
    tasks[i] = replace(tasks[i], frees=tuple(n for n in tasks[i].frees if n != name))
    tasks[i - 1] = replace(tasks[i - 1], frees=(*tasks[i - 1].frees, name))
    earlier = replace(graph, tasks=tuple(tasks))
    assert unsafe_frees(earlier) or uses_after_free(earlier)


@given(waiting_schedules())
def test_what_lives_until_the_call_returns_could_not_be_handed_out_before(
    graph: TaskGraph,
) -> None:
    """Results that nobody reads are freed too."""
    dropped = {name for task in graph.tasks for name in task.frees}
    *before, last = graph.tasks
    for storage in {s for task in graph.tasks for s in task.allocates}:
        holders = {task.name for task in graph.tasks if storage in task.holds}
        if holders.isdisjoint(ref_names(graph.outputs)) and not holders <= dropped:
            freed = replace(last, frees=(*last.frees, *(holders - dropped)))
            assert storage in unsafe_frees(replace(graph, tasks=(*before, freed)))


def test_a_value_read_on_another_stream_lives_until_its_own_stream_has_waited() -> None:
    def program(x: Tensor) -> Tensor:
        a = x.exp()
        return a.relu().tanh() + a.sigmoid()

    graph = schedule_of(program, torch.randn(2))
    assert graph.by_name["sigmoid"].stream != graph.by_name["exp"].stream
    assert [task.name for task in graph.tasks] == ["exp", "relu", "tanh", "sigmoid", "add"]
    assert "exp" in graph.by_name["add"].frees


def test_a_view_keeps_its_memory_alive() -> None:
    def program(x: Tensor) -> Tensor:
        view = x.exp().t()
        return view.relu() * view.cos().sum()

    graph = schedule_of(program, torch.randn(2, 2))
    position = {task.name: i for i, task in enumerate(graph.tasks)}
    freed = {name: position[task.name] for task in graph.tasks for name in task.frees}
    assert freed["exp"] == position["t"]
    assert freed["t"] >= max(position["relu"], position["cos"])


@given(st.lists(st.integers(0, 4), min_size=2, max_size=4), st.booleans())
def test_inputs_that_shared_memory_may_each_have_their_own(lengths: list[int], by: bool) -> None:
    """The schedule of a trace whose inputs share a storage is legal where they do not."""

    def program(*inputs: Tensor) -> Tensor:
        results = []
        for x, n in zip(inputs, lengths, strict=True):
            result = x @ x
            for _ in range(n):
                result = result.sin()
            results.append(result)
        return torch.stack(results).sum()

    parts = torch.randn(len(lengths), 2, 2)
    together = schedule_of(
        program, *parts.unbind() if by else parts.view(-1, 2).chunk(len(lengths))
    )
    apart = schedule_of(program, *[part.clone() for part in parts])
    assert len({value.holds for value in together.inputs}) == 1
    assert len({value.holds for value in apart.inputs}) == len(lengths)
    scheduled = {task.name: task for task in together.tasks}
    tasks = [
        apart.by_name[name].updated(stream=task.stream, waits=task.waits, frees=task.frees)
        for name, task in scheduled.items()
    ]
    verify(replace(apart, tasks=tuple(tasks)))
