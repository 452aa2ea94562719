"""Emitted modules that were edited by hand: broken ones are refused, with the reason."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.codegen.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.verify import verify_source
from tests.support.judges import oracle_accepts, verifier_accepts, verifier_accepts_text
from tests.support.mutants import edited
from tests.support.schedules import schedule_of, schedules, two_branches, waiting_schedules


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


@given(waiting_schedules(), st.data())
def test_the_text_of_a_broken_schedule_is_refused_exactly_if_the_schedule_is(
    graph: TaskGraph, data: st.DataObject
) -> None:
    changed = broken(data, graph)
    legal = oracle_accepts(changed)
    assert verifier_accepts(changed) == legal
    assert verifier_accepts_text(emit(changed)) == legal
    assert verifier_accepts_text(emit(changed), changed) == legal
    if changed != graph and any(
        set(a.waits) != set(b.waits) or set(a.frees) != set(b.frees) or a.stream != b.stream
        for a, b in zip(changed.tasks, graph.tasks, strict=True)
    ):
        assert not verifier_accepts_text(emit(changed), graph)


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
            assert not verifier_accepts_text(without_line(text, i), graph), lines[i]


@given(waiting_schedules())
def test_a_deleted_wait_is_noticed_from_the_text_alone_exactly_if_something_races(
    graph: TaskGraph,
) -> None:
    text = emit(graph)
    waits = [(task.name, name) for task in graph.tasks for name in task.waits]
    lines = list(lines_that_have(text, r"^        s\d+\.wait_event\(e\.(?!fork)"))
    assert len(lines) == len(waits)
    for i, (task, name) in zip(lines, waits, strict=True):
        kept = tuple(other for other in graph.by_name[task].waits if other != name)
        legal = oracle_accepts(edited(graph, task, waits=kept))
        assert verifier_accepts_text(without_line(text, i)) == legal


@given(waiting_schedules())
def test_a_deleted_fork_join_or_record_is_noticed_from_the_text_alone(graph: TaskGraph) -> None:
    text = emit(graph)
    for i in lines_that_have(text, r"wait_event\(e\.fork|^    s0\.wait_event|\.record\("):
        assert not verifier_accepts_text(without_line(text, i)), text.split("\n")[i]


@given(schedules())
def test_a_deleted_del_only_keeps_memory_longer(graph: TaskGraph) -> None:
    text = emit(graph)
    for i in lines_that_have(text, r"^ +del "):
        verify_source(without_line(text, i))


@given(waiting_schedules())
def test_a_block_on_another_stream_is_noticed_where_the_graph_is_known(graph: TaskGraph) -> None:
    text = emit(graph)
    lines = text.split("\n")
    for i in lines_that_have(text, r"^    with s[1-9]"):
        changed = [*lines[:i], "    with s0:", *lines[i + 1 :]]
        assert not verifier_accepts_text("\n".join(changed), graph)


RELU = r"aten\.relu\.default\(x_1\)"
EDITS = {
    "a del before its last use": (
        r"        add = (.*\n)        del x_1, relu, sigmoid",
        r"        del x_1, relu, sigmoid\n        add = \1",
        "is freed after sigmoid|has been freed",
    ),
    "a del after a del": (
        r"(        del )x_1, relu, sigmoid\n",
        r"\1relu\n\1x_1, relu, sigmoid\n",
        r"frees relu.*not legal: it is already freed after add \(stream 0, <module>:\d+: add = ",
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
    "an urgent stream that is not there": ("(N_STREAMS = 2)", r"\1\nURGENT = 2", "URGENT is 2"),
    "an urgent stream before the first": (
        "(N_STREAMS = 2)", r"\1\nURGENT = -1", "URGENT is -1, not one of 2",
    ),
    "an urgent stream that is no number": ("(N_STREAMS = 2)", r"\1\nURGENT = True", "URGENT is T"),
    "an event too few": (r'"fork", ', "", "EVENTS"),
    "another input": (r"inputs\[0\]", "inputs[1]", "INPUTS has 1 names"),
    "an input of another name": (r'    "x_1",', '    "x",', "input 0 is x"),
    "inputs kept": (r"    inputs\.clear\(\)\n", "", "must clear inputs"),
    "a loop": (r"    with s0:\n", "    for _ in streams:\n", "no such statement"),
    "a call of something else": (RELU, "print(x_1)", "there is no operator print"),
    "a function of torch's": (
        r"aten\.add\.Tensor",
        "torch.add",
        r"torch\.add; an operator is called by its overload: aten\.add\.Tensor, aten\.add\.Scalar",
    ),
    "an operator that is not there": (r"\.relu\.", ".relo.", "no operator aten.relo.default"),
    "an overload that is not there": (r"\.default\(", ".Tensor(", "no operator aten.relu.Tensor"),
    "an expression": (RELU, "aten.relu.default(x_1 + x_1)", "neither a value nor"),
    "a nested call": (RELU, "aten.t.default(aten.relu.default(x_1))", "not construct an argument"),
    "a value that is not there": (RELU, "aten.relu.default(y)", "neither a value nor"),
    "a second assignment": (r"add = aten", "relu = aten", "already another value"),
    "a name that hides torch": (r"relu = ", "torch = ", "torch is already|no operator"),
    "more arguments": (RELU, "aten.relu.default(x_1, 1)", "does not take these"),
    "an unknown keyword": (RELU, "aten.relu.default(x_1, a=1)", "does not take these"),
    "all keywords": (RELU, "aten.relu.default(**x_1)", "one by one"),
    "an import": (r"import torch\n", "import torch\nimport os\n", "no emitted module: import os"),
    "no Python": (r"with s0:", "with s0", "not a Python module"),
    "no tuple": (r"    return \(add,\)", "    return add", "no such statement"),
    "more behind the return": (r"(    return .*\n)", r"\1    inputs.clear()\n", "nothing follows"),
    "an index that makes a copy": (
        r"aten\.add\.Tensor\(relu, sigmoid\)", "sigmoid[True]", "must be a call, or an item",
    ),
    "more than Python takes": (RELU, f"{'-' * 100_000}1", "not a Python module"),
    "other memory": (RELU, "aten.resize_.default(x_1, [1])", "replaces the storage"),
}  # fmt: skip


def returns_both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.mm(torch.relu(x), w), torch.mm(torch.sigmoid(x), w)


def writes_an_input(x: Tensor, w: Tensor) -> Tensor:
    x.copy_(torch.mm(torch.sigmoid(w), w))
    return torch.mm(torch.relu(w), w)


@pytest.mark.parametrize("program", [returns_both, writes_an_input])
def test_a_record_that_leaves_out_the_last_task_of_a_stream_is_refused(
    program: Callable[..., Any],
) -> None:
    graph = schedule_of(program, torch.randn(256, 256), torch.randn(256, 256))
    lines = emit(graph).split("\n")
    (joined,) = graph.joins
    record = next(lines_that_have(emit(graph), rf"e\.{joined}\.record"))
    task = max(i for i in range(record) if "aten." in lines[i])  # the last of its stream
    lines.insert(task, lines.pop(record))
    for known in (graph, None):
        with pytest.raises(
            ScheduleError, match=r"does not happen before the end|where .* is expected"
        ):
            verify_source("\n".join(lines), known)


def test_a_join_of_another_task_is_not_the_graphs() -> None:
    graph = schedule_of(returns_both, torch.randn(4, 4), torch.randn(4, 4))
    text = emit(graph)
    joins = "    s0.wait_event(e.mm_1)\n"
    more = text.replace("        e.mm_1.record(s1)\n", "        e.mm_1.record(s1)\n" * 2)
    more = more.replace(joins, joins + "    e.fork.record(s0)\n    s0.wait_event(e.fork)\n")
    verify_source(more)
    with pytest.raises(
        ScheduleError, match=r"waited for at the end are .*mm, mm_1, and in .* mm_1"
    ):
        verify_source(more, graph)


@pytest.mark.parametrize(
    "hidden",
    [
        "torch.ops.prims.device_put.default(x_1, torch.device('cpu'))",
        "aten._test_optional_intlist.default(x_1, None)",
        "aten.dequantize.self(x_1)",
        "torch.ops.inductor._reinterpret_tensor.default(x_1, [2, 4], [4, 1])",
        "aten._sparse_coo_tensor_with_dims_and_tensors.default(1, 0, [2], x_1, x_1)",
        "aten.sparse_compressed_tensor.comp_plain_value_size(x_1, x_1, x_1, [2, 4])",
    ],
)
def test_what_may_be_its_argument_without_saying_so_is_no_memory_of_its_own(hidden: str) -> None:
    text = emit(schedule_of(two_branches, torch.randn(2, 4)))
    relu = "relu = aten.relu.default(x_1)"
    own = "own = aten.clone.default(x_1)\n        relu = aten.relu_.default(own)"
    verify_source(text.replace(relu, own))
    with pytest.raises(ScheduleError, match="race on storage x_1"):
        verify_source(text.replace(relu, own.replace("aten.clone.default(x_1)", hidden)))


def test_an_operator_that_chooses_a_stream_is_refused() -> None:
    pytest.importorskip("torch._dynamo.variables.streams")
    text = emit(schedule_of(two_branches, torch.randn(2, 4)))
    chosen = re.sub(r"add = .*", "add = torch.ops.streams.fork.default(1, relu)", text, count=1)
    with pytest.raises(ScheduleError, match="chooses a stream"):
        verify_source(chosen)


def test_a_program_is_no_text_and_no_graph() -> None:
    graph = schedule_of(two_branches, torch.randn(2, 4))
    with pytest.raises(TypeError, match="takes the text of a module, not a TaskGraph"):
        verify_source(graph)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a program's graph, not a str"):
        verify_source(emit(graph), emit(graph))  # type: ignore[arg-type]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_breaks_it_is_refused_from_the_text_alone_with_the_reason(edit: str) -> None:
    pattern, replacement, message = EDITS[edit]
    text = emit(schedule_of(two_branches, torch.randn(2, 4)))
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    with pytest.raises(ScheduleError, match=message):
        verify_source(changed)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"aten\.relu\.", "aten.sigmoid.", "its operator: 'aten.sigmoid.default'"),
        (r"\(relu, sigmoid\)", "(sigmoid, relu)", "its arguments: .*sigmoid.*relu"),
        (r"\(relu, sigmoid\)", "(relu, sigmoid, alpha=2)", "its keyword arguments"),
        (r"    return \(add,\)", "    return (add, 1)", "does not return"),
        (r"del x_1, relu", "del relu", "its list of frees"),
        (
            r"(N_STREAMS = 2)",
            r"\1\nURGENT = 1",
            "has URGENT = 1, and two_branches has None",
        ),
    ],
)
def test_another_program_is_legal_alone_but_not_where_the_graph_is_known(
    pattern: str, replacement: str, message: str
) -> None:
    graph = schedule_of(two_branches, torch.randn(2, 4))
    changed = re.sub(pattern, replacement, emit(graph), count=1)
    verify_source(changed)
    with pytest.raises(ScheduleError, match=message):
        verify_source(changed, graph)


@pytest.mark.parametrize("urgent", [0, 1])
def test_a_text_without_the_graphs_urgent_stream_is_not_the_graphs(urgent: int) -> None:
    graph = replace(schedule_of(two_branches, torch.randn(2, 4)), urgent=urgent)
    text = emit(graph)
    verify_source(text, graph)
    for other in (f"URGENT = {1 - urgent}", ""):
        changed = text.replace(f"URGENT = {urgent}", other)
        verify_source(changed)
        with pytest.raises(ScheduleError, match=f"two_branches has {urgent}"):
            verify_source(changed, graph)


def of_two_inputs() -> TaskGraph:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x) + torch.sigmoid(y)

    return schedule_of(program, torch.randn(2), torch.randn(2))


def test_a_text_of_fewer_or_other_inputs_is_not_the_graphs() -> None:
    graph = schedule_of(two_branches, torch.randn(2, 4))
    other = of_two_inputs()
    with pytest.raises(ScheduleError, match="takes 2 inputs and parameters"):
        verify_source(emit(other), graph)
    longer = emit(graph).replace("    return", "    more = aten.relu.default(add)\n    return")
    longer = longer.replace("    more", "    with s0:\n        more")
    with pytest.raises(ScheduleError, match="the text has 4 tasks and two_branches has 3"):
        verify_source(longer, graph)


def test_a_wait_too_many_is_legal_alone_but_not_where_the_graph_is_known() -> None:
    graph = schedule_of(lambda x: torch.relu(x).exp() + torch.sigmoid(x).sin(), torch.randn(2))
    waits = next(lines_that_have(emit(graph), r"s0\.wait_event"))
    lines = emit(graph).split("\n")
    record = next(lines_that_have(emit(graph), r"sigmoid = "))
    lines.insert(waits, "        s0.wait_event(e.early)")
    lines.insert(record + 1, "        e.early.record(s1)")
    text = "\n".join(lines).replace("EVENTS = (", 'EVENTS = ("early", ')
    verify_source(text)
    with pytest.raises(ScheduleError, match="its list of waits"):
        verify_source(text, graph)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"aten\.add\.Tensor\(", "operator.add(", "cannot take a tensor"),
        (r"(aten\.add\.Tensor\(.*)\)", r"\1, alpha=1, alpha=1)", "keyword argument is repeated"),
        (r"(    s0, .*= streams\n)", r"    with s0:\n        'early'\n\1", "s0 is not a stream"),
        (r"(    return )", r"    with s9:\n        'nothing'\n\1", "s9 is not a stream"),
        (r"INPUTS = \(", "INPUTS = ('mm.0', ", "must be tuples of names"),
        (r"def call\((.*)\):", r"def call(\1) -> print(5):", "line|call"),
        (r"def call\((.*)\):", r"def call(\1) -> (aten := torch.ops.prims):", "line|call"),
        (r"aten\.add\.Tensor\(.*\)", "torch.ops.aten.list.t([relu])", "no operator aten.list.t"),
        (r"aten\.add\.Tensor\(.*\)", "aten.cpu.default(relu)", "no operator aten.cpu.default"),
        (r"aten\.add\.Tensor\(.*\)", "aten.__class__.Tensor(relu)", "no operator aten.__cl"),
        (r"aten\.add\.Tensor\(.*\)", "aten.name.Tensor(relu)", "no operator aten.name.Tensor"),
        (
            r"aten\.add\.Tensor\(.*\)",
            "torch.ops.higher_order.cond.default(relu)",
            "no operator higher_order.cond.default",
        ),
        (
            r"aten\.add\.Tensor\(.*\)",
            "torch.ops.prims.device_put.default(relu, torch.device('nonsense'))",
            "there is no device 'nonsense'",
        ),
        (r"aten\.add\.Tensor\(.*\)", "torch.ops.aten.set_data.default(relu, sigmoid)", "storage"),
        (r"PARAMETERS = \(\n\)", "PARAMETERS = ()\nMEMORY = {[1]: 2}", "a table must be a literal"),
        (
            r"PARAMETERS = \(\n\)",
            "PARAMETERS = ()\nMEMORY = {'x_1': (['y_1'],)}",
            "in the memory of",
        ),
    ],
)
def test_what_could_hide_something_is_refused(old: str, new: str, message: str) -> None:
    text = emit(of_two_inputs())
    changed, n = re.subn(old, new, text, count=1)
    assert n == 1
    with pytest.raises(ScheduleError, match=message):
        verify_source("import operator\n" + changed if "operator." in new else changed)
