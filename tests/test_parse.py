"""Emitted modules read back: what the text says, and what happens when it was edited by hand."""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nimble_fx
from nimble_fx.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.ir import Arg, Input, Ref, Task, TaskGraph
from nimble_fx.parse import parse
from nimble_fx.verify import verify, verify_source
from tests.grammar import AtenProgram
from tests.schedules import scheduled, schedules, traced
from tests.strategies import SCALAR, aten_programs
from tests.test_verify import edited, is_legal, is_legal_by_oracle

aten = torch.ops.aten


def is_legal_text(text: str, graph: TaskGraph | None = None) -> bool:
    try:
        verify_source(text, graph)
    except ScheduleError:
        return False
    return True


def of(function: Callable[..., object], *inputs: Tensor) -> TaskGraph:
    return scheduled(traced(function, *inputs, functional=False).graph)


def branchy(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.sigmoid(x)


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
    graph = of(program.function(), *program.example_inputs())
    verify_source(emit(graph))
    verify_source(emit(graph), graph)


def broken(data: st.DataObject, graph: TaskGraph) -> TaskGraph:
    """The graph without a wait, with a value freed elsewhere, or with a task on another stream."""
    task = data.draw(st.sampled_from(graph.tasks))
    kind = data.draw(st.sampled_from(["wait", "free", "stream"]))
    if kind == "wait" and task.waits:
        return edited(graph, task.name, waits=task.waits[1:])
    if kind == "free" and task.frees:
        moved = edited(graph, task.name, frees=task.frees[1:])
        made = next((i for i, t in enumerate(graph.tasks) if t.name == task.frees[0]), 0)
        at = data.draw(st.sampled_from(moved.tasks[made:]))
        return edited(moved, at.name, frees=(*at.frees, task.frees[0]))
    if kind == "stream" and task.launches:
        moved = edited(graph, task.name, stream=data.draw(st.integers(0, graph.n_streams - 1)))
        return moved if moved.n_streams == graph.n_streams else graph
    return graph


@given(schedules(), st.data())
def test_the_text_of_a_broken_schedule_is_refused_exactly_if_the_schedule_is(
    graph: TaskGraph, data: st.DataObject
) -> None:
    changed = broken(data, graph)
    legal = is_legal_by_oracle(changed)
    assert is_legal(changed) == legal
    assert is_legal_text(emit(changed)) == legal
    assert is_legal_text(emit(changed), changed) == legal
    if changed != graph and any(
        set(a.waits) != set(b.waits) or set(a.frees) != set(b.frees) or a.stream != b.stream
        for a, b in zip(changed.tasks, graph.tasks, strict=True)
    ):
        assert not is_legal_text(emit(changed), graph)


def without_line(text: str, i: int) -> str:
    lines = text.split("\n")
    return "\n".join(lines[:i] + lines[i + 1 :])


def lines_that_have(text: str, pattern: str) -> Iterator[int]:
    return (i for i, line in enumerate(text.split("\n")) if re.search(pattern, line))


@given(schedules())
def test_no_line_of_call_can_be_deleted_unnoticed_where_the_graph_is_known(
    graph: TaskGraph,
) -> None:
    text = emit(graph)
    lines = text.split("\n")
    first = lines.index("def call(inputs, p, streams, e):") + 2  # behind the docstring
    for i in range(first, next(lines_that_have(text, "^    return")) + 1):
        if not lines[i].lstrip().startswith(("with", "#")):
            assert not is_legal_text(without_line(text, i), graph), lines[i]


@given(schedules())
def test_a_deleted_wait_is_noticed_from_the_text_alone_exactly_if_something_races(
    graph: TaskGraph,
) -> None:
    text = emit(graph)
    waits = [(task.name, name) for task in graph.tasks for name in task.waits]
    lines = list(lines_that_have(text, r"^        s\d+\.wait_event\(e\.(?!fork)"))
    assert len(lines) == len(waits)
    for i, (task, name) in zip(lines, waits, strict=True):
        kept = tuple(other for other in graph.by_name[task].waits if other != name)
        legal = is_legal_by_oracle(edited(graph, task, waits=kept))
        assert is_legal_text(without_line(text, i)) == legal


@given(schedules())
def test_a_deleted_fork_join_or_record_is_noticed_from_the_text_alone(graph: TaskGraph) -> None:
    text = emit(graph)
    for i in lines_that_have(text, r"wait_event\(e\.fork|^    s0\.wait_event|\.record\("):
        assert not is_legal_text(without_line(text, i)), text.split("\n")[i]


@given(schedules())
def test_a_deleted_del_only_keeps_memory_longer(graph: TaskGraph) -> None:
    text = emit(graph)
    for i in lines_that_have(text, r"^ +del "):
        verify_source(without_line(text, i))


@given(schedules())
def test_a_block_on_another_stream_is_noticed_where_the_graph_is_known(graph: TaskGraph) -> None:
    text = emit(graph)
    lines = text.split("\n")
    for i in lines_that_have(text, r"^    with s[1-9]"):
        changed = [*lines[:i], "    with s0:", *lines[i + 1 :]]
        assert not is_legal_text("\n".join(changed), graph)


EDITS = {
    "a del before its last use": (
        r"        add = (.*\n)        del x_1, relu, sigmoid",
        r"        del x_1, relu, sigmoid\n        add = \1",
        "is freed after sigmoid|has been freed",
    ),
    "a record before its task": (
        r"(        sigmoid = .*\n)(        e\.sigmoid\.record\(s1\)\n)",
        r"\2\1",
        "add needs to wait for sigmoid",
    ),
    "a wait after its task": (
        r"(        s0\.wait_event\(e\.sigmoid\)\n)(        add = .*\n)",
        r"\2\1",
        "race on storage sigmoid",
    ),
    "a wait for another event": (r"s0\.wait_event\(e\.sigmoid\)", "s0.wait_event(e.fork)", "race"),
    "a wait of another stream": (r"s0\.wait_event\(e\.s", "s1.wait_event(e.s", "race on storage"),
    "a record on another stream": (r"sigmoid\.record\(s1\)", "sigmoid.record(s0)", "race on"),
    "another stream": (r"with s1:", "with s0:", "nothing has been launched on s1|no task"),
    "a stream too few": ("N_STREAMS = 2", "N_STREAMS = 1", "N_STREAMS"),
    "an event too few": (r'"fork", ', "", "EVENTS"),
    "another input": (r"inputs\[0\]", "inputs[1]", "there are 1 inputs"),
    "an input of another name": (r'    "x_1",', '    "x",', "input 0 is x"),
    "inputs kept": (r"    inputs\.clear\(\)\n", "", "empties inputs"),
    "a loop": (r"    with s0:\n", "    for _ in streams:\n", "no such statement"),
    "a call of something else": (r"torch\.relu\(x_1\)", "print(x_1)", "there is no operator print"),
    "an operator with overloads": (r"aten\.add\.Tensor", "torch.add", "may be any of"),
    "an operator that is not there": (r"torch\.relu\(", "torch.relo(", "no operator torch.relo"),
    "an expression": (r"torch\.relu\(x_1\)", "torch.relu(x_1 + x_1)", "neither a value nor"),
    "a nested call": (r"torch\.relu\(x_1\)", "torch.relu(torch.relu(x_1))", "make an argument"),
    "a value that is not there": (r"torch\.relu\(x_1\)", "torch.relu(y)", "neither a value nor"),
    "a second assignment": (r"add = aten", "relu = aten", "already stands for something else"),
    "a name that hides torch": (r"relu", "torch", "torch already stands|no operator"),
    "more arguments": (r"torch\.relu\(x_1\)", "torch.relu(x_1, 1)", "does not take these"),
    "an unknown keyword": (r"torch\.relu\(x_1\)", "torch.relu(x_1, a=1)", "does not take these"),
    "all keywords": (r"torch\.relu\(x_1\)", "torch.relu(**x_1)", "one by one"),
    "an import": (r"import torch\n", "import torch\nimport os\n", "line .* import os"),
    "no Python": (r"with s0:", "with s0", "not a Python module"),
    "no tuple": (r"    return \(add,\)", "    return add", "no such statement"),
    "more behind the return": (r"(    return .*\n)", r"\1    inputs.clear()\n", "nothing follows"),
    "other memory": (r"torch\.relu\(x_1\)", "aten.resize_.default(x_1, [1])", "other memory"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_breaks_it_is_refused_from_the_text_alone_with_the_reason(edit: str) -> None:
    pattern, replacement, message = EDITS[edit]
    text = emit(of(branchy, torch.randn(2, 4)))
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    with pytest.raises(ScheduleError, match=message):
        verify_source(changed)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"torch\.relu\(", "torch.sigmoid(", "its operator: 'aten.sigmoid.default'"),
        (r"\(relu, sigmoid\)", "(sigmoid, relu)", "its arguments: .*sigmoid.*relu"),
        (r"\(relu, sigmoid\)", "(relu, sigmoid, alpha=2)", "its keyword arguments"),
        (r"    return \(add,\)", "    return (add, 1)", "does not return"),
        (r"del x_1, relu", "del relu", "its list of frees"),
    ],
)
def test_another_program_is_legal_alone_but_not_where_the_graph_is_known(
    pattern: str, replacement: str, message: str
) -> None:
    graph = of(branchy, torch.randn(2, 4))
    changed = re.sub(pattern, replacement, emit(graph), count=1)
    verify_source(changed)
    with pytest.raises(ScheduleError, match=message):
        verify_source(changed, graph)


def test_a_text_of_fewer_or_other_inputs_is_not_the_graphs() -> None:
    graph = of(branchy, torch.randn(2, 4))
    other = of(lambda x, y: torch.relu(x) + torch.sigmoid(y), torch.randn(2), torch.randn(2))
    with pytest.raises(ScheduleError, match="takes 2 inputs and parameters"):
        verify_source(emit(other), graph)
    longer = emit(graph).replace("    return", "    more = torch.relu(add)\n    return")
    longer = longer.replace("    more", "    with s0:\n        more")
    with pytest.raises(ScheduleError, match="the text has 4 tasks and branchy has 3"):
        verify_source(longer, graph)


def test_values_may_have_other_names_in_the_text() -> None:
    graph = of(branchy, torch.randn(2, 4))
    renamed = re.sub(r"\bx_1\b", "given", re.sub(r"\brelu\b(?!\()", "first", emit(graph)))
    assert "first = torch.relu(given)" in renamed
    verify_source(renamed, graph)


def test_items_are_read_back_as_the_operators_results() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        values, indices = x.topk(2)
        a, b = torch._foreach_add([x, x], 1)
        return values.exp(), indices + 1, x.sort()[0].sin(), a.exp(), b.sin()

    torch.compile(program, backend="nimble")(torch.randn(4))
    text = nimble_fx.programs()[-1].source
    verify_source(text)
    tasks = parse(text).graph.by_name
    assert tasks["topk"].allocates == ("topk.0", "topk.1")
    assert tasks["_foreach_add"].allocates[1:] == ("_foreach_add.0", "_foreach_add.1")
    (sort,) = (task for task in tasks.values() if task.target == aten.sort.default)
    (item,) = (task for task in tasks.values() if task.frees == (sort.name,))
    assert (item.target, item.args) == (operator.getitem, (Ref(sort.name), 0))


def test_an_item_that_is_not_there_is_refused() -> None:
    text = emit(of(lambda x: x.topk(2)[0].exp(), torch.randn(4)))
    with pytest.raises(ScheduleError, match="topk has 2 results"):
        verify_source(text.replace("getitem = topk[0]", "getitem = topk[2]"))


def test_pieces_that_are_views_race_as_the_whole_does() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = torch.ops.aten.split.Tensor(x.exp(), 2)
        return left.mul_(2), right.sin()

    text = emit(of(program, torch.randn(4)))
    tasks = parse(text).graph.by_name
    assert not tasks["split"].launches
    assert tasks["getitem"].holds == tasks["getitem_1"].holds == ("exp",)


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
    assert not is_legal(apart)
    assert not is_legal_text(emit(apart), apart)
    assert not is_legal_text(emit(apart))
    verify_source(emit(graph))


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("", "lies in the memory of"),
        ("MEMORY = {'y': ('y',)}", "says of 'y'"),
        ("MEMORY = {'z': ('x',)}", "says of 'z'"),
        ("MEMORY = {'y': 'x'}", "says of 'y'"),
        ("MEMORY = 5", "says of 5"),
        ("MEMORY = {'x': ('y',)}", "lies in the memory of"),
        ("MEMORY = {'y': ()}", "lies in the memory of"),
    ],
)
def test_a_table_of_memory_that_is_not_the_graphs_is_refused(memory: str, message: str) -> None:
    graph = sharing_inputs()
    text = re.sub(r"MEMORY = \{[^}]*\}", memory, emit(graph))
    with pytest.raises(ScheduleError, match=message):
        verify_source(text, graph)


def test_numbers_among_the_inputs_hold_no_memory() -> None:
    given = (Input("x", SCALAR, ("x",)), Input("n", None))
    tasks = (
        Task("mul", operator.mul, (Ref("n"), 2), index=0),
        Task("full", aten.full.default, ((Ref("mul"),), 1), type=SCALAR, index=1,
             writes=("full",), allocates=("full",), holds=("full",)),
        new("add", aten.add.Tensor, ("x", "full"), 2, ("x", "full")),
    )  # fmt: skip
    after = (replace(tasks[2], after=("full",)),)
    graph = scheduled(TaskGraph("g", given, (), (*tasks[:2], *after), (Ref("add"),)))
    verify_source(emit(graph))
    verify_source(emit(graph), graph)
    assert [value.holds for value in parse(emit(graph)).graph.inputs] == [("x",), ()]


def test_an_input_with_the_name_of_what_makes_arguments_does_no_harm() -> None:
    for name in ("float", "slice", "complex"):
        task = new("t", aten.relu.default, (name,), 0, (name,))
        given = (Input(name, SCALAR, (name,)),)
        graph = scheduled(TaskGraph("g", given, (), (task,), (Ref("t"), float("inf"), slice(1))))
        verify_source(emit(graph), graph)


def test_a_wait_too_many_is_legal_alone_but_not_where_the_graph_is_known() -> None:
    graph = of(lambda x: torch.relu(x).exp() + torch.sigmoid(x).sin(), torch.randn(2))
    waits = next(lines_that_have(emit(graph), r"s0\.wait_event"))
    lines = emit(graph).split("\n")
    record = next(lines_that_have(emit(graph), r"sigmoid = "))
    lines.insert(waits, "        s0.wait_event(e.early)")
    lines.insert(record + 1, "        e.early.record(s1)")
    text = "\n".join(lines).replace("EVENTS = (", 'EVENTS = ("early", ')
    verify_source(text)
    with pytest.raises(ScheduleError, match="its list of waits"):
        verify_source(text, graph)


def of_two_inputs() -> TaskGraph:
    return of(lambda x, y: torch.relu(x) + torch.sigmoid(y), torch.randn(2), torch.randn(2))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"aten\.add\.Tensor\(", "operator.add(", "given a tensor"),
        (r"def call\((.*)\):", r"def call(\1) -> print(5):", "line|call"),
        (r"def call\((.*)\):", r"def call(\1) -> (aten := torch.ops.prims):", "line|call"),
        (r"aten\.add\.Tensor\(.*\)", "torch.ops.aten.list.t([relu])", "lists of anything"),
        (r"aten\.add\.Tensor\(.*\)", "torch.ops.aten.set_data.default(relu, sigmoid)", "memory"),
        (r"PARAMETERS = \(\n\)", "PARAMETERS = ()\nMEMORY = {[1]: 2}", "a table is a literal"),
        (r"PARAMETERS = \(\n\)", "PARAMETERS = ()\nMEMORY = {'x_1': (['y_1'],)}", "says of"),
    ],
)
def test_what_could_hide_something_is_refused(old: str, new: str, message: str) -> None:
    text = emit(of_two_inputs())
    changed, n = re.subn(old, new, text, count=1)
    assert n == 1
    with pytest.raises(ScheduleError, match=message):
        verify_source("import operator\n" + changed if "operator." in new else changed)


def test_items_of_a_list_are_taken_before_it_is_used_as_a_whole() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.ops.aten._foreach_add.List([x, x], [y, y])
        return torch.ops.aten.zero_.default(both[0]), both[1] + 1

    text = emit(of(program, torch.randn(2), torch.randn(2)))
    verify_source(text)
    item = next(line for line in text.split("\n") if "= _foreach_add[1]" in line)
    whole = "        whole = aten.cat.default(_foreach_add)"
    verify_source(text.replace(item, f"{item}\n{whole}"))
    with pytest.raises(ScheduleError, match="before it is used as a whole"):
        verify_source(text.replace(item, f"{whole}\n{item}"))
