"""Changed tasks are new objects, with current uses."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph, ref_names
from tests.strategies import task_graphs

relu = torch.ops.aten.relu.default


@given(task_graphs(), st.booleans())
def test_an_updated_task_differs_in_what_was_changed_alone(
    graph: TaskGraph, has_looked: bool
) -> None:
    for task in graph.tasks:
        assert not has_looked or list(task.uses) == ref_names((task.args, task.kwargs))
        changed = task.updated(stream=7, args=(Ref("other"),), source=None)
        assert (changed.stream, changed.uses) == (
            7,
            tuple(ref_names(((Ref("other"),), task.kwargs))),
        )
        for field in fields(Task):
            if field.name not in ("stream", "args", "_uses"):
                assert getattr(changed, field.name) == getattr(task, field.name)
        assert task.updated(stream=task.stream, args=task.args) is task


def test_a_task_without_arguments_uses_nothing() -> None:
    assert Task("t", relu).uses == ()
    assert Task("t", relu, (1, None), (("k", [Ref("a"), Ref("a")]),)).uses == ("a",)


def test_an_attribute_that_tasks_do_not_have_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Task("t", relu).updated(colour="red")


def test_names_are_found_in_lists_tuples_and_slices_once() -> None:
    arg = (Ref("a"), [Ref("b"), (Ref("a"), 3)], slice(Ref("c"), None, Ref("b")))
    assert ref_names(arg) == ["a", "b", "c"]


@given(task_graphs())
def test_replacing_tasks_by_equal_ones_gives_the_very_graph(graph: TaskGraph) -> None:
    assert graph.replace_tasks(task.updated() for task in graph.tasks) is graph


@given(task_graphs(), st.data())
def test_tasks_are_on_the_streams_that_are_named_and_others_on_none(
    graph: TaskGraph, data: st.DataObject
) -> None:
    named = data.draw(st.sets(st.sampled_from([task.name for task in graph.tasks])))
    streams = {name: i for i, name in enumerate(sorted(named))}
    placed = graph.with_streams(streams, urgent=3)
    assert {t.name: t.stream for t in placed.tasks if t.stream is not None} == streams
    assert placed.urgent == 3
    assert placed.with_streams(streams, urgent=3) is placed
    assert placed.with_streams(streams).urgent is None


@pytest.mark.parametrize("name", ["nobody", 7, Task("t", relu)])
def test_what_is_no_tasks_name_gets_no_stream(name: Any) -> None:
    graph = TaskGraph("net", (), (), (Task("t", relu),), ())
    with pytest.raises(ScheduleError, match="is not the name of a task in net"):
        graph.with_streams({"t": 0, name: 0})
