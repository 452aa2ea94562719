"""The user's view of a program: the graph as text and as networkx, the file."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest

import nimble_fx
from nimble_fx.errors import ScheduleError, UnsupportedError
from tests.support.saved import branchy_program, with_changes


def test_the_graph_prints_one_line_a_task() -> None:
    graph = branchy_program().graph
    lines = str(graph).splitlines()
    assert lines[0].startswith("Branchy.forward(")
    assert "x: f32[2, 4]" in lines[0]
    assert len(lines) == len(graph.tasks) + 3
    add = next(line for line in lines if line.startswith("add "))
    assert "aten.add_.Tensor" in add
    assert "models.py:" in add
    assert lines[-1] == "return (add)"


def test_networkx_gets_the_launching_tasks_and_their_order() -> None:
    digraph = branchy_program().graph.to_networkx()
    assert set(digraph) == {"mm", "relu", "mm_1", "sigmoid", "add"}
    assert nx.has_path(digraph, "mm", "add")
    assert digraph.nodes["add"]["stream"] == 0


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_refuses_to_be_pickled_and_copied_and_says_what_to_do(copied: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"Branchy\.forward cannot.*\.save\(file\)"):
        copied(branchy_program())


def test_a_broken_program_does_not_verify() -> None:
    good = branchy_program()
    good.verify()
    tasks = tuple(replace(task, waits=()) for task in good.graph.tasks)
    with pytest.raises(ScheduleError, match="race"):
        with_changes(good, graph=replace(good.graph, tasks=tasks)).verify()


def test_a_program_whose_source_was_changed_does_not_verify() -> None:
    good = branchy_program()
    source = good.source.replace("        s0.wait_event(e.sigmoid)\n", "")
    assert source != good.source
    with pytest.raises(ScheduleError, match="<module>"):
        with_changes(good, source=source).verify()
    nimble_fx.verify_source(good.source)
    with pytest.raises(ScheduleError, match="race on storage mm_1"):
        nimble_fx.verify_source(source)
