"""What a pass must leave as it is, and texts of the same operators."""

import operator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from nimble_fx.codegen.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Ref, Source, Task, TaskGraph
from nimble_fx.verify import verify, verify_source
from nimble_fx.verify.equivalence import check_same_program
from tests.support.mutants import edited
from tests.support.schedules import branchy, schedule_of

SCHEDULED: dict[str, Any] = {"after": ("relu",), "stream": 7, "waits": ("relu",), "frees": ("x",)}
"""The attributes that a schedule consists of, with others than the passes give."""

MEANING: dict[str, Any] = {
    "target": operator.add,
    "args": (Ref("relu"),),
    "kwargs": (("alpha", 3),),
    "type": None,
    "index": 17,
    "reads": (),
    "writes": ("relu",),
    "allocates": (),
    "holds": ("relu",),
    "ordered": True,
    "source": Source("model.py", 1, "relu(x)"),
    "fused": (Source("model.py", 1, "relu(x)"),),
}
OF_GRAPHS: dict[str, Any] = {
    "name": "another",
    "inputs": (),
    "constants": branchy().inputs,
    "outputs": (Ref("relu"),),
    "labels": ("gradient of x",),
}


def test_each_attribute_of_a_task_and_of_a_graph_is_known() -> None:
    attributes = {field.name for field in fields(Task) if field.compare}
    assert attributes == {"name", *SCHEDULED, *MEANING}
    assert {f.name for f in fields(TaskGraph)} == {"tasks", "provenance", "urgent", *OF_GRAPHS}


@pytest.mark.parametrize("attribute", SCHEDULED)
def test_passes_may_change_when_and_where_tasks_run(attribute: str) -> None:
    graph = branchy()
    check_same_program(edited(graph, "add", **{attribute: SCHEDULED[attribute]}), graph)


@pytest.mark.parametrize("attribute", MEANING)
def test_passes_may_change_nothing_else_of_a_task(attribute: str) -> None:
    graph = branchy()
    changed = edited(graph, "add", **{attribute: MEANING[attribute]})
    with pytest.raises(ScheduleError, match=f"changes {attribute} of add"):
        check_same_program(changed, graph)


@pytest.mark.parametrize("attribute", OF_GRAPHS)
def test_passes_may_change_nothing_else_of_a_graph(attribute: str) -> None:
    graph = branchy()
    with pytest.raises(ScheduleError, match=f"changes the {attribute} of|loses or adds"):
        verify(replace(graph, **{attribute: OF_GRAPHS[attribute]}), graph)


def test_an_operator_that_was_defined_anew_is_the_same() -> None:
    """PyTorch makes another object for it; a schedule that was loaded has the former."""
    with torch.library._scoped_library("nimble_equivalence", "DEF") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x + 1, "CompositeExplicitAutograd")
        library.impl("same", torch.empty_like, "Meta")
        packet = torch.ops.nimble_equivalence.same
        graph = schedule_of(lambda x: packet(x), torch.randn(2))
        text = emit(graph)
        del torch.ops.nimble_equivalence.same
        assert torch.ops.nimble_equivalence.same.default is not graph.tasks[0].target
        verify_source(text, graph)


def test_an_item_may_be_anywhere_after_its_operator() -> None:
    """In a text a single item is on the operator's line."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch._foreach_add([x], 1)[0] + x.sin()

    graph = schedule_of(program, torch.randn(3))
    (item,) = (task for task in graph.tasks if task.is_item)
    others = [task for task in graph.tasks if task is not item]
    last = next(i for i, task in enumerate(others) if item.name in task.uses)
    positions = range(1 + names(others).index(item.args[0].name), last + 1)
    assert len(positions) > 1
    for i in positions:
        moved = replace(graph, tasks=(*others[:i], item, *others[i:]))
        verify_source(emit(moved), moved)
        verify_source(emit(graph), moved)


def names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]
