"""Errors of the verifier name and show the tasks that are wrong, and say what would be right."""

from dataclasses import replace

import pytest
import torch

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Ref, Source, TaskGraph
from nimble_fx.verify import verify
from nimble_fx.verify.diagnostics import excerpt
from tests.support.judges import oracle_accepts
from tests.support.mutants import edited
from tests.support.schedules import branchy, schedule_of, scheduled


def with_sources(graph: TaskGraph) -> TaskGraph:
    lines = enumerate(graph.tasks, 1)
    return graph.replace_tasks(
        replace(task, source=Source("model.py", i, f"y = {task.name}(x)")) for i, task in lines
    )


def long_branches() -> TaskGraph:
    """Two branches of eight tasks and a join."""

    def program(x: torch.Tensor) -> torch.Tensor:
        left = right = x
        for _ in range(8):
            left, right = left.exp(), right.sin()
        return left + right

    return with_sources(schedule_of(program, torch.randn(2, 2)))


def message_of(graph: TaskGraph) -> list[str]:
    with pytest.raises(ScheduleError) as caught:
        verify(graph)
    return str(caught.value).split("\n")


def marked(lines: list[str]) -> list[str]:
    return [line.split()[2] for line in lines if line.startswith(">")]


def test_a_missing_wait_is_shown_with_the_tasks_around_and_what_would_order_them() -> None:
    graph = long_branches()
    assert graph.by_name["add"].waits == ("sin_7",)
    lines = message_of(edited(graph, "add", waits=()))
    assert "race on storage sin_7: add (stream 0, model.py:17: y = add(x)) reads" in lines[0]
    assert "sin_7 (stream 1, model.py:16: y = sin_7(x))" in lines[0]
    assert lines[1] == (
        "add is task 9 of stream 0 and waits for nothing; sin_7 is task 8 of stream 1, of which "
        "none is sure to be done by then: add needs to wait for sin_7"
    )
    assert marked(lines) == ["sin_7", "add"]
    assert len(lines[5:]) == 10
    assert lines[4].split() == ["#", "task", "operator", "stream", "waits", "frees", "source"]
    assert lines[-1].split()[:5] == [">", "16", "add", "aten.add.Tensor", "0"]


def test_an_early_free_is_shown_with_the_tasks_around() -> None:
    graph = long_branches()
    lines = message_of(edited(graph, "exp_1", frees=("exp", "exp_1")))
    assert "exp_2 (stream 0, model.py:" in lines[0]
    assert "uses exp_1, which has been freed" in lines[0]
    assert lines[1] == (
        "it is freed after exp_1 (stream 0, model.py:2: y = exp_1(x)): "
        "exp_1 needs to be freed later"
    )
    assert marked(lines) == ["exp_1", "exp_2"]


def test_a_second_free_is_shown_with_the_first_one() -> None:
    graph = long_branches()
    first = next(task.name for task in graph.tasks if "exp" in task.frees)
    lines = message_of(edited(graph, "add", frees=("exp",)))
    assert lines[0].startswith("add (stream 0, model.py:17: y = add(x)) frees exp, which is not")
    assert f"legal: it is already freed after {first} (stream 0, model.py:" in lines[0]
    assert marked(lines) == [first, "add"]


def test_a_free_of_what_is_not_made_yet_is_refused() -> None:
    lines = message_of(edited(long_branches(), "exp", frees=("add",)))
    assert lines[0].endswith("frees add, which is not legal: it is not defined yet")


def test_a_changed_stream_is_shown_with_the_tasks_around() -> None:
    graph = long_branches()
    lines = message_of(edited(graph, "exp_4", stream=1))
    assert "race on storage exp_3: exp_4 (stream 1, model.py:" in lines[0]
    assert "exp_3 (stream 0, model.py:" in lines[0]
    assert "exp_4 needs to wait for exp_3" in lines[1]
    assert marked(lines) == ["exp_3", "exp_4"]


def test_memory_given_back_too_early_is_shown_with_who_gets_it_and_who_is_not_done() -> None:
    graph = long_branches()
    lines = message_of(edited(edited(graph, "add", frees=()), "sin", frees=("x_1",)))
    assert lines[0].startswith("x_1 is freed after sin (stream 1, model.py:9: y = sin(x)), but ")
    assert lines[0].endswith(
        "may get its memory before sin (stream 1, model.py:9: y = sin(x)) is done with it"
    )
    assert lines[1] == (
        "no task of stream 0 so far waits for sin; its newest task is exp_7: "
        "x_1 needs to be freed later"
    )
    assert marked(lines) == ["exp_7", "sin"]


def test_tasks_that_are_far_apart_are_shown_with_five_around_each() -> None:
    graph = long_branches()
    lines = message_of(edited(graph, "add", frees=("x_1", "exp_7", "sin_7", "exp")))
    assert "frees exp, which is not legal" in lines[0]
    far = edited(graph, graph.tasks[0].name, frees=("x_1",))
    second = graph.tasks[-1]
    lines = message_of(edited(far, second.name, args=(Ref("x_1"), *second.args[1:])))
    assert marked(lines)
    text = "\n".join(excerpt(graph, [0, len(graph.tasks) - 1]))
    assert text.count("model.py") == 10
    assert "\n   ...\n" in text


def test_the_error_for_a_task_before_what_it_needs_says_where_to_move_it() -> None:
    graph = branchy()
    add, relu = graph.by_name["add"], graph.by_name["relu"]
    write = replace(relu, name="w", target=add.target, index=-1, writes=("x_1",), allocates=())
    broken = replace(graph, tasks=(*graph.tasks, replace(write, holds=("x_1",), waits=("add",))))
    broken = edited(broken, "add", frees=())
    lines = message_of(broken)
    assert "w needs to be launched before" in lines[1]


def test_a_wait_for_what_is_known_already_takes_nothing_away() -> None:
    verify(edited(long_branches(), "add", waits=("sin_7", "sin")))


def test_tasks_of_one_stream_that_are_launched_in_the_wrong_order_are_caught() -> None:
    graph = edited(scheduled(branchy(), "serial"), "add", frees=())
    write = replace(graph.by_name["relu"], name="w", index=-1, writes=("x_1",), allocates=())
    late = replace(graph, tasks=(*graph.tasks, replace(write, holds=("x_1",), frees=())))
    assert not oracle_accepts(late)
    assert "w needs to be launched before" in message_of(late)[1]


def test_two_writes_that_nothing_reads_between_are_ordered() -> None:
    first = replace(branchy().by_name["relu"], reads=(), writes=("x_1",), allocates=())
    first = replace(first, holds=("x_1",), frees=())
    second = replace(first, name="second", index=1, stream=1)
    graph = replace(branchy(), tasks=(first, second), outputs=(Ref("x_1"),))
    assert "overwrites what is written by relu" in message_of(graph)[0]
