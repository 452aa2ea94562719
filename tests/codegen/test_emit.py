"""Emitted modules: valid, deterministic, readable, and they compute what eager computes."""

import ast
import copy
import importlib.util
import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import nimble_fx
from nimble_fx.codegen.emit import emit, task_of_line, text_of
from nimble_fx.codegen.load import load
from nimble_fx.devices.cpu import Cpu
from nimble_fx.ir.task_graph import Input, Ref, Source, Task, TaskGraph
from nimble_fx.runtime.launch import Launcher
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.verify import verify_source
from nimble_fx.verify.parse.module import parse
from tests.strategies import SCALAR
from tests.support.models import CASES
from tests.support.schedules import (
    aten_graph,
    schedule_of,
    scheduled,
    schedules,
    two_branches,
    waiting_schedules,
)

aten = torch.ops.aten


@given(schedules())
def test_the_text_is_valid_python_and_the_same_each_time(graph: TaskGraph) -> None:
    text = emit(graph)
    ast.parse(text)
    assert text == emit(copy.deepcopy(graph))


@given(waiting_schedules())
def test_each_wait_each_drop_and_each_needed_record_is_written_once(graph: TaskGraph) -> None:
    lines = [line.strip() for line in emit(graph).splitlines()]
    waits = sum("wait_event" in line for line in lines)
    records = sum(".record(" in line for line in lines)
    forked = bool(graph.forks)
    assert waits == graph.n_waits + len(graph.forks) + len(graph.joins)
    assert records == len(graph.recorded) + forked
    dropped = [name for line in lines if line.startswith("del ") for name in line[4:].split(", ")]
    unused = [task.name for task in graph.tasks if task.name in task.frees]  # never named
    assert sorted(dropped + unused) == sorted(n for task in graph.tasks for n in task.frees)


@given(schedules())
def test_the_task_of_each_line_is_found(graph: TaskGraph) -> None:
    lines = [line.strip() for line in emit(graph).splitlines()]
    found = [task for task in (task_of_line(graph, line) for line in lines) if task is not None]
    calls = [(task.target, task.args, task.kwargs) for task in found]
    for task in graph.launching:
        assert task in found or (task.target, task.args, task.kwargs) in calls
    assert task_of_line(graph, "inputs.clear()") is None


def test_the_module_reads_like_this() -> None:
    graph = schedule_of(two_branches, torch.randn(2, 4))
    call = emit(graph).split("\n\n\n")[1]
    assert call == inspect.cleandoc(
        '''
        def call(inputs, p, streams, e):
            """Enqueue on s0, the current stream, and 1 more; clear `inputs`; return (add,)."""
            x_1 = inputs[0]  # f32[2, 4]
            inputs.clear()
            s0, s1 = streams
            e.fork.record(s0)
            with s0:
                relu = aten.relu.default(x_1)  # f32[2, 4]
            with s1:
                s1.wait_event(e.fork)
                sigmoid = aten.sigmoid.default(x_1)  # f32[2, 4]
                e.sigmoid.record(s1)
            with s0:
                s0.wait_event(e.sigmoid)
                add = aten.add.Tensor(relu, sigmoid)  # f32[2, 4]
                del x_1, relu, sigmoid
            return (add,)
        '''
    )


@pytest.mark.parametrize(
    ("name", "dynamic"), [("googlenet", False), ("views", True), ("recurrent", False)]
)
def test_ruff_has_nothing_to_say(name: str, dynamic: bool, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "emitted.py"
    with torch.no_grad():
        torch.compile(case.model().eval(), backend="nimble", dynamic=dynamic)(*case.inputs())
    path.write_text(nimble_fx.programs()[-1].source)
    for command in (["format", "--check", "--isolated"], ["check", "--isolated"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, path], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_one_item_of_several_results_is_taken_on_the_line_of_the_call() -> None:
    def program(x: Tensor) -> Tensor:
        return x.topk(2)[0].exp()

    torch.compile(program, backend="nimble")(torch.randn(4))
    text = nimble_fx.programs()[-1].source
    assert "getitem = aten.topk.default(x, 2)[0]  # f32[2]\n" in text
    assert "topk =" not in text


@given(st.lists(st.integers(0, 3), max_size=6), st.sets(st.integers(0, 3)))
def test_all_results_are_unpacked_on_the_line_of_the_call(
    read: list[int], returned: set[int]
) -> None:
    def program(x: Tensor) -> list[Tensor]:
        parts = x.split(1)
        return [*[parts[i].sin() for i in read], *[parts[i] for i in sorted(returned)]]

    used = {*read, *returned}
    assume(used)
    gm = aten_graph(program, torch.randn(4))
    gm.graph.eliminate_dead_code()
    graph = scheduled(trace(gm, "program").graph)
    text = emit(graph)
    verify_source(text, graph)
    (line,) = (line.strip() for line in text.split("\n") if "aten.split." in line)
    assert line.split(" = ")[0].count(", ") == (3 if len(used) == 4 else 0)
    assert ("[" in line.split("  #")[0]) == (len(used) == 1)
    x = torch.randn(4)
    results = Launcher(graph, load(text, "unpacked.py"), {}, Cpu())([x])
    assert all(map(torch.equal, results, program(x)))


def test_the_module_runs_from_its_text_alone(tmp_path: Path) -> None:
    path = tmp_path / "emitted.py"
    path.write_text(emit(schedule_of(two_branches, torch.randn(2, 4))))
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    device, x = Cpu(), torch.randn(2, 4)
    events = device.events(module.EVENTS)
    (result,) = module.call([x], SimpleNamespace(), device.streams(module.N_STREAMS), events)
    assert torch.equal(result, two_branches(x))
    assert "nimble_fx" not in {name.split(".")[0] for name in vars(module)}


def test_names_that_would_hide_something_are_changed() -> None:
    names = ["aten", "e", "p", "s0", "torch", "fork", "lambda"]
    tasks = tuple(
        Task(name, aten.relu.default, (Ref("x"),), type=SCALAR, index=i, reads=("x",),
             writes=(name,), allocates=(name,), holds=(name,))
        for i, name in enumerate(names)
    )  # fmt: skip
    graph = TaskGraph("g", (Input("x", SCALAR, ("x",)),), (), tasks, tuple(map(Ref, names)))
    x = torch.randn(2, 3)
    graph = scheduled(graph)
    results = Launcher(graph, load(emit(graph), "names.py"), {}, Cpu())([x])
    assert all(torch.equal(result, x.relu()) for result in results)


@pytest.mark.parametrize(
    "value",
    [
        1, -2.5, float("inf"), float("-inf"), True, None, "it's", 1 + 2j, complex("inf"),
        torch.float32, torch.device("cuda", 0), torch.strided, torch.channels_last,
        [1, [2, None]], slice(None, 3, -1), complex(0.0, float("inf")),
    ],
)  # fmt: skip
def test_a_literal_reads_back_as_itself(value: object) -> None:
    assert eval(text_of(value, {}), {"torch": torch}) == value


def test_nan_reads_back_as_nan() -> None:
    assert text_of(float("nan"), {}) == 'float("nan")'


def test_a_parameter_with_the_name_of_a_keyword_is_renamed() -> None:
    given = Input("lambda", SCALAR, ("lambda",), static=True)
    task = Task("relu", aten.relu.default, (Ref("lambda"),), type=SCALAR, reads=("lambda",),
                writes=("relu",), allocates=("relu",), holds=("relu",))  # fmt: skip
    graph = scheduled(TaskGraph("g", (given,), (), (task,), (Ref("relu"),)))
    x = torch.randn(2, 3)
    (result,) = Launcher(graph, load(emit(graph), "keyword.py"), {}, Cpu())([x])
    assert torch.equal(result, x.relu())


def test_a_view_at_the_start_of_a_branch_stands_in_that_branch() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x) + torch.sigmoid(w.t())

    text = emit(schedule_of(program, torch.randn(2, 2), torch.randn(2, 2)))
    assert "    with s1:\n        s1.wait_event(e.fork)\n        t = aten.t.default" in text


def test_items_stand_with_their_operator_and_a_view_with_its_use() -> None:
    def program(x: Tensor) -> Tensor:
        values, indices = x.topk(2)
        return values.exp().sin().cos() + (indices + 1).view(2).float()

    text = emit(schedule_of(program, torch.randn(4)))
    blocks = text.split("    with s")
    assert "topk" in blocks[1]
    assert "getitem, getitem_1 = aten.topk.default(x_1, 2)  # (f32[2], i64[2])\n" in blocks[1]
    (with_view,) = (block for block in blocks if "aten.view" in block)
    assert "_to_copy" in with_view


def test_kwargs_and_several_namespaces_are_written() -> None:
    task = Task(
        "made", torch.ops.prims.iota.default, (4,), (("start", 0), ("dtype", torch.int64)),
        SCALAR, writes=("made",), allocates=("made",), holds=("made",),
    )  # fmt: skip
    text = emit(scheduled(TaskGraph("g", (), (), (replace(task),), (Ref("made"),))))
    assert "torch.ops.prims.iota.default(4, start=0, dtype=torch.int64)" in text


def test_a_line_of_the_model_stays_on_one_line_whatever_it_holds() -> None:
    graph = schedule_of(torch.sin, torch.ones(2))
    source = Source("a/b\nimport os\r.py", 3, "x\n\u2028 y")
    text = emit(graph.replace_tasks(task.updated(source=source) for task in graph.tasks))
    assert "# b import os .py:3  x y\n" in text


def test_a_task_without_a_recorded_line_is_not_shown_under_that_of_another() -> None:
    graph = schedule_of(lambda x: x.sin().cos(), torch.ones(2))
    line = Source("model.py", 3, "x.sin()", "layers.0")
    text = emit(graph.replace_tasks(
        task.updated(source=line if "sin" in str(task.target) else None) for task in graph.tasks
    ))  # fmt: skip
    lines = [each.strip() for each in text.splitlines()]
    sin, cos = (
        next(i for i, each in enumerate(lines) if f"aten.{f}" in each) for f in ("sin", "cos")
    )
    assert lines[sin - 1] == "# model.py:3 in layers.0  x.sin()"
    assert "# from no recorded line of the model" in lines[sin + 1 : cos]


@given(schedules(), st.data())
def test_labels_change_how_outputs_are_written_and_not_what_they_are(
    graph: TaskGraph, data: st.DataObject
) -> None:
    graph = replace(graph, outputs=graph.outputs * 3)
    label = st.sampled_from(["", "saved", "a gradient"])
    labels = data.draw(st.tuples(*[label] * len(graph.outputs)))
    text = emit(replace(graph, labels=labels))
    assert parse(text, graph).graph.outputs == parse(emit(graph), graph).graph.outputs
    returned = text[text.index("    return (") : text.index("# the arguments")]
    assert all(label in returned for label in labels)
    assert "#" not in [line.strip() for line in returned.splitlines()]
