"""Task graphs as JSON: reading returns what was written, and accepts nothing else."""

import json
import string
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Input, Source, Task, TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType, TupleType
from nimble_fx.serialization import graphs
from nimble_fx.serialization.graphs import decode_graph, encode_graph
from nimble_fx.serialization.json_field import Field
from nimble_fx.torch_internals.operators import KERNELS
from tests.support.saved import programs_of_models
from tests.support.schedules import schedules
from tests.support.trials import Trial, trials

TEXT = st.text(string.ascii_letters + " ./()", min_size=1)
SCALAR = TensorType((), (), torch.float32, torch.device("cpu"))


def there_and_back(graph: TaskGraph) -> TaskGraph:
    return decoded(json.loads(json.dumps(encode_graph(graph), allow_nan=False)))


def decoded(document: dict[str, Any]) -> TaskGraph:
    return decode_graph(Field(document).members())


def assert_comes_back(graph: TaskGraph) -> None:
    assert there_and_back(graph) == graph
    assert repr(there_and_back(graph)) == repr(graph)  # True is not 1, -0.0 is not 0.0


@given(schedules())
def test_a_drawn_schedule_comes_back(graph: TaskGraph) -> None:
    assert_comes_back(graph)


@given(trials())
def test_a_drawn_program_comes_back_before_and_after_the_passes(trial: Trial) -> None:
    traced, graph = trial.schedule()
    assert_comes_back(traced.graph)
    assert_comes_back(graph)


def test_the_graphs_of_all_models_come_back() -> None:
    graphs = [program.graph for program in programs_of_models()]
    assert any(graph.name.endswith("(backward)") for graph in graphs)
    assert any(isinstance(value.type, ScalarType) for graph in graphs for value in graph.inputs)
    for graph in graphs:
        assert_comes_back(graph)


@given(schedules(), st.lists(st.builds(Source, TEXT, st.integers(1, 2**31), TEXT), max_size=3))
def test_the_lines_of_fused_operators_come_back(graph: TaskGraph, lines: list[Source]) -> None:
    tasks = [replace(task, fused=tuple(lines)) for task in graph.tasks]
    assert_comes_back(replace(graph, tasks=tuple(tasks)))


@pytest.mark.parametrize("kind", [Task, Input, Source])
def test_each_attribute_of_a_record_can_be_read(kind: type) -> None:
    wanted = {field.name for field in fields(kind) if field.init}
    assert wanted <= {"target", *graphs._DECODERS}


def test_every_kind_of_type_comes_back() -> None:
    kinds = TupleType((SCALAR, None, ScalarType("s0*2"), TupleType(())))
    symbolic = TensorType(("s0", 3), (3, "s0//2"), torch.bfloat16, torch.device("cuda", 1))
    conjugated = replace(SCALAR, dtype=torch.complex64, is_conj=True)
    lazily = conjugated, replace(SCALAR, is_neg=True), replace(conjugated, is_neg=True)
    every = SCALAR, kinds, symbolic, None, *lazily
    inputs = tuple(Input(f"x{i}", kind) for i, kind in enumerate(every))
    assert_comes_back(TaskGraph("kinds", inputs, (), (), ()))


def encoded(kind: TensorType) -> dict[str, Any]:
    """A type as a file has it."""
    graph = encode_graph(TaskGraph("program", (Input("x", kind, ("x",)),), (), (), ()))
    members: dict[str, Any] = graph["inputs"][0]["type"]
    return members


def document(**task: Any) -> dict[str, Any]:
    """A graph of one task, some of whose attributes are as given."""
    source = Source("model.py", 7, "x + x")
    add = Task("t", torch.ops.aten.add.Tensor, (2.0, 3), type=SCALAR, source=source)
    graph = encode_graph(TaskGraph("program", (Input("x", SCALAR, ("x",)),), (), (add,), ()))
    graph["tasks"][0] |= task
    return graph


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "a b"}, r"tasks\[0\]\.name is 'a b', not a name"),
        ({"name": "__class__"}, r"tasks\[0\]\.name"),
        ({"name": "x\n"}, r"tasks\[0\]\.name"),
        ({"name": "ﬁ"}, r"tasks\[0\]\.name"),
        ({"target": "operator.attrgetter"}, r"tasks\[0\]\.target is 'operator.attrgetter', not an"),
        ({"target": "aten::mul.Tensor"}, "not an operator of the file's table"),
        ({"target": "operator.getitem", "args": [1]}, "getitem with two"),
        ({"kwargs": [["alpha"]]}, "pairs of a keyword"),
        ({"kwargs": [["alpha", 2], ["alpha", 3]]}, "keywords, each once"),
        ({"kwargs": [["a=1, b", 2]]}, r"kwargs\[0\]\[0\]"),
        ({"after": ["x"]}, "t comes after a task that launches nothing"),
        ({"index": -1}, r"index is -1"),
        ({"index": True}, r"index is True, not an integer"),
        ({"index": 1.0}, r"index is 1.0, not an integer"),
        ({"ordered": 1}, "true or false"),
        ({"speed": 1}, r"tasks\[0\]\.speed is 1, not a member"),
        ({"type": {"expression": "s0\nimport os"}}, "cannot|one line of printable text"),
        ({"type": {"shape": [1], "stride": [], "dtype": "float32", "device": "cpu"}}, "each size"),
        ({"type": {"shape": [1.5], "stride": [1], "dtype": "float32", "device": "cpu"}}, "1.5"),
        ({"type": {"shape": [], "stride": [], "dtype": "f", "device": "cpu"}}, "'f', not a dtype"),
        (
            {"type": {"shape": [], "stride": [], "dtype": "int8", "device": "me"}},
            "name of a device",
        ),
        ({"type": {**encoded(SCALAR), "is_neg": 1}}, "type.is_neg is 1, not true or false"),
        ({"type": {**encoded(SCALAR), "is_conj": True}}, "conjugated only if its dtype is complex"),
        ({"type": {**encoded(SCALAR), "is_real": True}}, "not a type"),
        ({"source": {"file": "a", "line": 1, "code": "\0"}}, "control characters"),
        ({"source": {"file": "a", "line": 1}}, "source has no code"),
        ({"reads": [["x"]]}, r"reads\[0\] is \['x'\], not text"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_place(task: dict[str, Any], message: str) -> None:
    decoded(document())
    with pytest.raises(FileError, match=message):
        decoded(document(**task))


@pytest.mark.parametrize("labels", [["saved"], ["saved\x1b", ""], [1, 2], "saved"])
def test_labels_are_one_line_for_each_output(labels: object) -> None:
    graph = replace(decoded(document()), outputs=(1, 2), labels=("saved", ""))
    assert decoded(encode_graph(graph)) == graph
    with pytest.raises(FileError, match="labels"):
        decoded(encode_graph(graph) | {"labels": labels})


@pytest.mark.parametrize("name", ["aten::add.Tensro", "nobody::knows", "torch::ops", "aten::add.x"])
def test_an_operator_that_is_not_here_is_named(name: str) -> None:
    with pytest.raises(FileError, match=f"operator '{name}' is not known"):
        decoded(document() | {"operators": {name: ""}})
    assert "nobody" not in vars(torch.ops)


def test_a_kernel_that_inductor_compiled_here_is_refused() -> None:
    with torch.library._scoped_library(KERNELS, "FRAGMENT") as library:
        library.define("cpp_fused_x(Tensor x0) -> Tensor")
        kernel = torch.ops.nimble_kernels.cpp_fused_x.default
        with pytest.raises(FileError, match="operator 'nimble_kernels::cpp_fused_x' is not known"):
            decoded(document() | {"operators": {kernel.name(): str(kernel._schema)}})


def test_an_operator_with_another_schema_is_refused() -> None:
    graph = document()
    graph["operators"]["aten::add.Tensor"] += "?"
    with pytest.raises(FileError, match=r"aten::add.Tensor differs.*here it is aten::add"):
        decoded(graph)


@pytest.mark.parametrize("name", ['a"""b', "a\nb", "a\\", "\u2028", 3, None])
def test_a_name_that_could_end_a_docstring_is_refused(name: object) -> None:
    with pytest.raises(FileError, match=r"name is .*, not"):
        decoded(document() | {"name": name})


@pytest.mark.parametrize("line", ["a\nb", "a\0b", "\u2028", 3, None])
def test_a_description_of_a_pass_is_a_line(line: object) -> None:
    with pytest.raises(FileError, match=r"provenance\[0\] is .*, not"):
        decoded(document() | {"provenance": [line]})


def test_what_no_trace_makes_cannot_be_stored() -> None:
    with pytest.raises(FileError, match="neither an operator nor a function of sizes"):
        encode_graph(TaskGraph("program", (), (), (Task("t", print),), ()))
