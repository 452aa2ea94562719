"""The pipeline records its passes, and reports which pass broke a graph."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx import serialization
from nimble_fx.codegen.emit import emit
from nimble_fx.errors import PassError, ScheduleError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.passes.chain_bookkeeping import ChainBookkeeping
from nimble_fx.pipeline import describe_pass, passes_for, schedule
from nimble_fx.verify import verify, verify_source
from nimble_fx.verify.structure import verify_structure
from tests.strategies import task_graphs
from tests.support.schedules import traced


@dataclass(frozen=True)
class Reverse:
    """A pass that breaks the order."""

    name = "reverse"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        return replace(graph, tasks=graph.tasks[::-1])


def test_provenance_lists_the_passes_with_their_options() -> None:
    graph = schedule(traced(torch.exp, torch.zeros(1)).graph, passes_for("nimble", 3))
    assert graph.provenance[0] == "trace"
    assert graph.provenance[4] == 'assign-streams(policy="nimble", max_streams=3)'
    assert graph.provenance[1:] == tuple(describe_pass(step) for step in passes_for("nimble", 3))


@dataclass(frozen=True)
class OneStream:
    """A policy with an option that may be any text."""

    pattern: object
    name = "one-stream"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        return graph.replace_tasks(t.updated(stream=0) if t.launches else t for t in graph.tasks)


@given(st.text())
@example(r"C:\new\users")
@example('a"""b\\')
def test_options_of_a_policy_may_be_any_text(text: str) -> None:
    graph = traced(torch.exp, torch.zeros(1)).graph
    made = [schedule(graph, passes_for(OneStream(each), 1)) for each in (text, [text])]
    program = ScheduledProgram(made[0], emit(made[0]), "cpu")
    verify_source(program.source, made[0])
    assert made[0].provenance[4] in (ast.get_docstring(ast.parse(program.source)) or "")
    assert all(line.isprintable() for each in made for line in each.provenance)
    saved = serialization.decode(serialization.encode(program))
    assert (saved.graph.provenance, saved.source) == (made[0].provenance, program.source)


def test_a_pass_that_breaks_a_graph_is_named() -> None:
    graph = traced(lambda x: x.exp().sin(), torch.zeros(1)).graph
    with pytest.raises(ScheduleError, match=r"after pass reverse: .*needs"):
        schedule(graph, [Reverse()])


@dataclass(frozen=True)
class Raises:
    """A pass that fails."""

    name = "raises"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        raise KeyError("oops")


def test_what_a_pass_raises_names_it() -> None:
    where = rf"the pass 'raises' raised KeyError: 'oops' \[.*{Path(__file__).name}:\d+\]"
    with pytest.raises(PassError, match=where) as caught:
        schedule(traced(torch.exp, torch.zeros(1)).graph, [Raises()])
    assert isinstance(caught.value.__cause__, KeyError)


@dataclass(frozen=True)
class Gives:
    """A pass that gives every launching task the same stream, or no graph at all."""

    stream: object
    name = "gives"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        if self.stream == "no graph":
            return None  # type: ignore[return-value]
        return graph.replace_tasks(
            t.updated(stream=self.stream if t.launches else None) for t in graph.tasks
        )


@pytest.mark.parametrize("stream", [1, -1, 10**9, 0.0, True, "s0", "no graph"])
def test_a_pass_that_gives_rubbish_is_named_before_the_next_one_sees_it(stream: object) -> None:
    graph = traced(lambda x: x.exp().sin(), torch.zeros(1)).graph
    with pytest.raises(ScheduleError, match="after pass gives: "):
        schedule(graph, passes_for(Gives(stream), None))


@given(task_graphs(), st.data())
def test_a_policy_that_misplaces_a_task_is_named_before_the_next_pass_sees_it(
    graph: TaskGraph, data: st.DataObject
) -> None:
    """That would raise something of its own, and be blamed."""
    misplaced = data.draw(st.sampled_from([task.name for task in graph.tasks]))
    rest = [task for task in graph.launching if task.name != misplaced]
    assume(rest)

    @dataclass(frozen=True)
    class Misplaces:
        name = "misplaces"

        def __call__(self, graph: TaskGraph) -> TaskGraph:
            streams = {task.name: 0 for task in graph.launching}
            if streams.pop(misplaced, None) is None:
                streams[misplaced] = 0
            return graph.with_streams(streams)

    with pytest.raises(ScheduleError, match=f"(?s)after pass misplaces: .*{misplaced}"):
        schedule(graph, passes_for(Misplaces(), None))


def test_an_error_of_a_policy_names_the_policys_line() -> None:
    @dataclass(frozen=True)
    class Changes:
        name = "changes"

        def __call__(self, graph: TaskGraph) -> TaskGraph:
            graph.tasks[0].stream = 0  # type: ignore[misc]
            return graph

    graph = traced(lambda x: x.exp(), torch.zeros(1)).graph
    with pytest.raises(PassError, match=r"FrozenInstanceError: .*test_pipeline.py:\d+\]"):
        schedule(graph, passes_for(Changes(), None))


def test_an_error_of_a_policy_that_was_typed_in_names_its_line() -> None:
    """A shell's or a notebook's lines are in no file."""
    typed: dict[str, Any] = {"dataclass": dataclass}
    lines = ["@dataclass(frozen=True)", "class Typed:", "    name = 'typed'",
             "    def __call__(self, graph):", "        return 1 / 0"]  # fmt: skip
    exec(compile("\n".join(lines), "<stdin>", "exec"), typed)
    graph = traced(lambda x: x.exp(), torch.zeros(1)).graph
    with pytest.raises(PassError, match=r"ZeroDivisionError: .*\[<stdin>:5\]"):
        schedule(graph, passes_for(typed["Typed"](), None))


@pytest.mark.parametrize("urgent", [2, -1, True, "s0", 0.0])
def test_a_stream_that_is_not_there_cannot_be_urgent(urgent: Any) -> None:
    @dataclass(frozen=True)
    class Prefers:
        name = "prefers"

        def __call__(self, graph: TaskGraph) -> TaskGraph:
            made = AssignStreams("nimble")(graph)
            return replace(made, urgent=urgent)

    graph = traced(lambda x: x.exp() + x.sin(), torch.zeros(1)).graph
    with pytest.raises(
        ScheduleError, match=r"after pass prefers: .*its urgent stream is .*, not one of its 2"
    ):
        schedule(graph, passes_for(Prefers(), None))


@given(task_graphs())
def test_each_pass_keeps_the_program_and_does_nothing_the_second_time(graph: TaskGraph) -> None:
    names = sorted(task.name for task in graph.tasks)
    for step in passes_for("nimble", None):
        graph = step(graph)
        verify_structure(graph)
        assert sorted(task.name for task in graph.tasks) == names
        if not isinstance(step, ChainBookkeeping):  # what rides is not found again
            assert step(graph) is graph


@pytest.mark.slow
def test_a_long_chain_of_views_is_no_deep_recursion() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(1200):
            x = x.t()
        return x.relu()

    graph = schedule(traced(program, torch.randn(2, 3)).graph, passes_for("nimble", None))
    verify(graph)
    assert len(graph.launching) == 1
