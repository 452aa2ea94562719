"""Parsed emitted modules: the contents of the text, and of texts edited by hand."""

import operator
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor

from nimble_fx.codegen.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Arg, Input, Ref, Task, TaskGraph
from nimble_fx.verify import verify, verify_source
from nimble_fx.verify.parse import parse
from tests.grammar import AtenProgram
from tests.strategies import SCALAR, aten_programs
from tests.support.judges import verifier_accepts, verifier_accepts_text
from tests.support.mutants import edited
from tests.support.schedules import schedule_of, scheduled, schedules, two_branches

aten = torch.ops.aten


@given(schedules())
def test_the_text_of_every_schedule_is_legal_alone_and_as_its_schedule(graph: TaskGraph) -> None:
    verify_source(emit(graph))
    verify_source(emit(graph), graph)


@given(schedules())
def test_the_text_reads_back_as_the_schedule_that_it_was_made_from(graph: TaskGraph) -> None:
    parsed = parse(emit(graph))
    assert parsed.graph.n_streams == graph.n_streams
    pairs = zip(parsed.graph.tasks, graph.tasks, strict=True)
    names = {text.name: task.name for text, task in pairs} | {"p.w": "w"}
    assert {names[name] for name in parsed.forks} == set(graph.forks)
    assert {names[name] for name in parsed.joins} == set(graph.joins)
    for text, task in zip(parsed.graph.tasks, graph.tasks, strict=True):
        assert (text.target, text.stream) == (task.target, task.stream)
        for found, expected in (
            (text.waits, task.waits),
            (text.frees, task.frees),
            (text.uses, task.uses),
            ({*text.reads, *text.writes}, {*task.reads, *task.writes}),
            (text.writes, task.writes),
            (text.holds, task.holds),
        ):
            assert sorted(names.get(name, name) for name in found) == sorted(expected)


@given(aten_programs())
def test_the_text_of_a_traced_program_is_legal_alone_and_as_its_schedule(
    program: AtenProgram,
) -> None:
    graph = schedule_of(program.function(), *program.example_inputs())
    verify_source(emit(graph))
    verify_source(emit(graph), graph)


def test_a_factory_need_not_wait_for_the_tensor_that_it_is_like() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return torch.zeros_like(y), y.sin()

    graph = schedule_of(program, torch.ones(2, 3))
    text = emit(graph)
    assert (graph.n_streams, graph.n_waits) == (2, 0)
    verify_source(text)
    with pytest.raises(ScheduleError, match="race on storage zeros_like"):
        verify_source(text.replace("aten.sin.default(exp)", "aten.sin.default(zeros_like)"))


def test_a_view_of_a_number_is_new_memory() -> None:
    """The backward of a product with 2j has one."""
    graph = schedule_of(lambda x: x * aten._conj.default(2j), torch.randn(3))
    assert len(graph.by_name["_conj"].allocates) == 1
    verify_source(emit(graph))
    verify_source(emit(graph), graph)


def test_values_may_have_other_names_in_the_text() -> None:
    graph = schedule_of(two_branches, torch.randn(2, 4))
    renamed = re.sub(r"\bx_1\b", "given", re.sub(r"\brelu\b(?!\.default)", "first", emit(graph)))
    assert "first = aten.relu.default(given)" in renamed
    verify_source(renamed, graph)


def test_literals_are_read_back_as_themselves() -> None:
    values = (
        1, -2.5, float("inf"), True, None, "it's", 1 + 2j, torch.float32, torch.device("cuda", 0),
        torch.strided, torch.channels_last, slice(None, 3, -1), -0.0, float("nan"), [1, [2, None]],
    )  # fmt: skip
    graph = TaskGraph("g", (), (), (), values)
    assert repr(parse(emit(graph)).graph.outputs[:-1]) == repr(values[:-1])
    assert parse(emit(graph)).graph.outputs[-1] == (1, (2, None))
    verify_source(emit(graph), replace(graph, outputs=(*values[:-1], (1, (2, None)))))
    for other in (1.0, True):
        with pytest.raises(ScheduleError, match="does not return"):
            verify_source(emit(graph), replace(graph, outputs=(other, *values[1:])))


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (-0.0, 0.0), (0.0, float("nan")), (complex(0.0, -0.0), 0j), (slice(1), slice(True)),
        ((1,), (1, 1)), ((1,), 1), ("1", 1), (None, False),
    ],
)  # fmt: skip
def test_literals_that_are_equal_but_not_the_same_are_told_apart(value: Arg, other: Arg) -> None:
    graph = TaskGraph("g", (), (), (), (value,))
    verify_source(emit(graph), graph)
    with pytest.raises(ScheduleError, match="does not return"):
        verify_source(emit(graph), replace(graph, outputs=(other,)))


def copy_or_view(copies: bool) -> TaskGraph:
    """relu on stream 0; on stream 1 contiguous(x), which is a copy or a view, and sigmoid of it."""
    contiguous = Task(
        "contiguous", aten.contiguous.default, (Ref("x"),), type=SCALAR, index=1, holds=("x",)
    )
    if copies:
        own = ("contiguous",)
        contiguous = replace(contiguous, reads=("x",), writes=own, allocates=own, holds=own)
    tasks = [
        new("relu", aten.relu.default, ("x",), 0, ("x",)),
        contiguous,
        new("sigmoid", aten.sigmoid.default, ("contiguous",), 2, contiguous.holds),
        new("add", aten.add.Tensor, ("relu", "sigmoid"), 3, ("relu", "sigmoid")),
    ]
    after = {"sigmoid": ("contiguous",) * copies, "add": ("relu", "sigmoid")}
    placed = tuple(replace(task, after=after.get(task.name, ())) for task in tasks)
    return scheduled(TaskGraph("g", (Input("x", SCALAR, ("x",)),), (), placed, (Ref("add"),)))


def new(
    name: str, target: Callable[..., object], uses: tuple[str, ...], i: int, reads: tuple[str, ...]
) -> Task:
    return Task(name, target, tuple(map(Ref, uses)), type=SCALAR, index=i, reads=reads,
                writes=(name,), allocates=(name,), holds=(name,))  # fmt: skip


@pytest.mark.parametrize("copies", [True, False])
def test_whether_a_composite_operator_copies_is_taken_from_the_graph(copies: bool) -> None:
    graph = copy_or_view(copies)
    verify(graph)
    verify_source(emit(graph), graph)
    contiguous = parse(emit(graph), graph).graph.by_name["contiguous"]
    assert contiguous.launches == copies
    assert contiguous.holds == (("contiguous",) if copies else ("x",))
    unknown = parse(emit(graph)).graph.by_name["contiguous"]
    assert unknown.launches
    assert set(unknown.holds) == {"x", "contiguous"}


def sharing_inputs() -> TaskGraph:
    """x and y lie in one memory; y is written after x was read."""
    given = (Input("x", SCALAR, ("m",)), Input("y", SCALAR, ("m",)))
    tasks = (
        new("relu", aten.relu.default, ("x",), 0, ("m",)),
        Task("add_", aten.add_.Tensor, (Ref("y"), 1), type=SCALAR, index=1, reads=("m",),
             writes=("m",), holds=("m",), after=("relu",)),
    )  # fmt: skip
    return scheduled(TaskGraph("g", given, (), tasks, (Ref("relu"),)), "serial")


def test_a_text_says_which_inputs_share_memory() -> None:
    graph = sharing_inputs()
    apart = edited(edited(graph, "add_", stream=1, frees=()), "relu", frees=())
    assert 'MEMORY = {\n    "y": ("x",),\n}' in emit(graph)
    assert not verifier_accepts(apart)
    assert not verifier_accepts_text(emit(apart), apart)
    assert not verifier_accepts_text(emit(apart))
    verify_source(emit(graph))


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("", "lies in the memory of"),
        ("MEMORY = {'y': ('y',)}", "has 'y' in the memory of"),
        ("MEMORY = {'z': ('x',)}", "has 'z' in the memory of"),
        ("MEMORY = {'y': 'x'}", "has 'y' in the memory of"),
        ("MEMORY = 5", "has 5 in the memory of"),
        ("MEMORY = {'x': ('y',)}", "lies in the memory of"),
        ("MEMORY = {'y': ()}", "writes a value that has no memory"),
    ],
)
def test_a_table_of_memory_that_is_not_the_graphs_is_refused(memory: str, message: str) -> None:
    graph = sharing_inputs()
    text = re.sub(r"MEMORY = \{[^}]*\}", memory, emit(graph))
    with pytest.raises(ScheduleError, match=message):
        verify_source(text, graph)


def doubled_size() -> TaskGraph:
    """A program with a number among its inputs, and arithmetic of Python on it."""
    given = (Input("x", SCALAR, ("x",)), Input("n", None))
    tasks = (
        Task("mul", operator.mul, (Ref("n"), 2), index=0),
        Task("full", aten.full.default, ((Ref("mul"),), 1), type=SCALAR, index=1,
             writes=("full",), allocates=("full",), holds=("full",)),
        new("add", aten.add.Tensor, ("x", "full"), 2, ("x", "full")),
    )  # fmt: skip
    after = (replace(tasks[2], after=("full",)),)
    return scheduled(TaskGraph("g", given, (), (*tasks[:2], *after), (Ref("add"),)))


@pytest.mark.parametrize("line", ["import operator", "import torch", "aten = torch.ops.aten"])
def test_a_text_without_an_import_that_it_needs_is_refused(line: str) -> None:
    text = emit(doubled_size())
    assert text.count(f"\n{line}\n") == 1
    with pytest.raises(ScheduleError, match=line):
        verify_source(text.replace(f"\n{line}\n", "\n"))


def test_an_import_before_what_it_needs_is_refused() -> None:
    text = emit(doubled_size()).replace("import torch\n", "", 1)
    text = text.replace("aten = torch.ops.aten\n", "aten = torch.ops.aten\nimport torch\n")
    with pytest.raises(ScheduleError, match="in order"):
        verify_source(text)


def test_numbers_among_the_inputs_hold_no_memory() -> None:
    graph = doubled_size()
    verify_source(emit(graph))
    verify_source(emit(graph), graph)
    assert [value.holds for value in parse(emit(graph)).graph.inputs] == [("x",), ()]


def test_an_input_with_the_name_of_what_makes_arguments_does_no_harm() -> None:
    for name in ("float", "slice", "complex"):
        task = new("t", aten.relu.default, (name,), 0, (name,))
        given = (Input(name, SCALAR, (name,)),)
        graph = scheduled(TaskGraph("g", given, (), (task,), (Ref("t"), float("inf"), slice(1))))
        verify_source(emit(graph), graph)


@pytest.mark.parametrize("n", [300, 800, 5000])
def test_what_is_nested_too_deeply_is_refused(n: int) -> None:
    text = emit(schedule_of(torch.sin, torch.ones(2)))
    call = "aten.sin.default(arg0_1)"
    assert call in text
    chain = "aten.sin.default" + "()" * n + "(arg0_1)"
    deep = (f"aten.sin.default({'-' * n}1)", chain, "1 + " * n + "1")
    for each in deep:
        with pytest.raises(ScheduleError):
            verify_source(text.replace(call, each))
    with pytest.raises(ScheduleError):
        verify_source(f"{text}\nx = {'-' * n}1\n")
