"""What a person sees: the summary, the graph as text and as networkx, the file."""

import json
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nimble_fx
from nimble_fx import load as load_program
from nimble_fx.codegen.emit import emit
from nimble_fx.errors import FileError, ScheduleError, UnsupportedError
from nimble_fx.verify import verify
from tests.support.bits import assert_same_bits
from tests.support.models import Branchy, Mutates
from tests.support.playing import SEED
from tests.support.saved import mutations, program_of, programs_of_models, with_changes
from tests.support.trials import Trial, trials


def program() -> nimble_fx.Program:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options={"policy": "nimble"})(torch.randn(2, 4))
    return nimble_fx.programs()[-1]


def test_the_summary_is_one_screen_with_the_facts() -> None:
    text = program().summary()
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert lines[0] == "Branchy.forward"
    for fact in (
        "tasks    5 launched, 7 in all",
        "streams  2 (width 2)",
        "waits    1 of 4 orders between tasks",
        "forks    1 from stream 0, 0 joined to it",
        "runs on  cpu",
        "frozen   no: cpu has no CUDA graphs",
    ):
        assert fact in text


def test_the_graph_prints_one_line_a_task() -> None:
    graph = program().graph
    lines = str(graph).splitlines()
    assert lines[0].startswith("Branchy.forward(")
    assert "x: f32[2, 4]" in lines[0]
    assert len(lines) == len(graph.tasks) + 3
    add = next(line for line in lines if line.startswith("add "))
    assert "aten.add_.Tensor" in add
    assert "models.py:" in add
    assert lines[-1] == "return (add)"


def test_networkx_gets_the_launching_tasks_and_their_order() -> None:
    digraph = program().graph.to_networkx()
    assert set(digraph) == {"mm", "relu", "mm_1", "sigmoid", "add"}
    assert nx.has_path(digraph, "mm", "add")
    assert digraph.nodes["add"]["stream"] == 0


def test_a_broken_program_does_not_verify() -> None:
    good = program()
    good.verify()
    tasks = tuple(replace(task, waits=()) for task in good.graph.tasks)
    with pytest.raises(ScheduleError, match="race"):
        with_changes(good, graph=replace(good.graph, tasks=tasks)).verify()


def test_a_program_whose_source_was_changed_does_not_verify() -> None:
    good = program()
    source = good.source.replace("        s0.wait_event(e.sigmoid)\n", "")
    assert source != good.source
    with pytest.raises(ScheduleError, match="<module>"):
        with_changes(good, source=source).verify()
    nimble_fx.verify_source(good.source)
    with pytest.raises(ScheduleError, match="race on storage mm_1"):
        nimble_fx.verify_source(source)


def test_a_loaded_program_is_the_one_that_was_saved(tmp_path: Path) -> None:
    for i, saved in enumerate(programs_of_models()):
        loaded = load_program(saved.save(tmp_path / f"{i}.json"))
        assert loaded.graph == saved.graph
        assert loaded.source == saved.source
        assert (loaded.device, loaded.parameters) == (saved.device, saved.parameters)
        assert loaded.constants.keys() == saved.constants.keys()
        loaded.verify()
        loaded.summary()


@given(trials(max_steps=8))
def test_a_loaded_program_gives_eagers_bits(trial: Trial) -> None:
    inputs = trial.program.example_inputs(trial.seed)
    with TemporaryDirectory() as folder:
        path = program_of(*trial.schedule()).save(Path(folder) / "drawn.json")
        run = load_program(path).bind({})
    torch.manual_seed(SEED)
    assert_same_bits([*inputs, *run(*inputs)], trial.expected())


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data())
def test_a_file_that_was_changed_is_refused_or_verifies(data: st.DataObject) -> None:
    small = [saved for saved in programs_of_models() if len(saved.graph.tasks) < 40]
    saved = data.draw(st.sampled_from(small))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "changed.json"
        text = saved.save(path).read_text()
        path.write_text(data.draw(mutations(text)))
        loaded = loaded_or_refused(path)
    if loaded is not None:
        loaded.verify()
        loaded.summary()
        str(loaded.graph)


def loaded_or_refused(path: Path) -> nimble_fx.Program | None:
    """What a file holds; None if it is refused, with an error that says which file."""
    try:
        return load_program(path)
    except FileError as error:
        if not str(error).startswith(f"{path}: "):
            raise
    return None


def test_loading_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program().save(tmp_path / "program.json")
    ran: list[str] = []
    monkeypatch.setattr("nimble_fx.runtime.runner.load", lambda source, _: ran.append(source))
    load_program(path)
    load_program(path, trust_source=True)
    assert ran == []


def test_the_same_program_is_saved_as_the_same_text(tmp_path: Path) -> None:
    texts = []
    for i in range(2):
        torch.compiler.reset()
        texts.append(program().save(tmp_path / f"{i}.json").read_text())
    assert texts[0] == texts[1]
    again = load_program(tmp_path / "0.json").save(tmp_path / "again.json")
    assert again.read_text() == texts[0]


def with_source(path: Path, old: str, new: str) -> Path:
    document = json.loads(path.read_text())
    text = "\n".join(document["source"])
    assert old in text
    document["source"] = text.replace(old, new).split("\n")
    path.write_text(json.dumps(document))
    return path


def test_the_text_of_a_file_is_run_only_if_asked_for(tmp_path: Path) -> None:
    path = with_source(program().save(tmp_path / "p.json"), "import torch", "import torch  # mine")
    assert "# mine" not in load_program(path).source
    trusted, model, x = load_program(path, trust_source=True), Branchy(), torch.randn(2, 4)
    assert "# mine" in trusted.source
    assert_same_bits(trusted.bind(model)(x), [model(x).detach()])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", "import torch\nimport os\n"),
        ("aten.sigmoid_", "aten.relu_"),
        ("        s0.wait_event(e.sigmoid)\n", ""),
        ("inputs.clear()", "inputs.clear(print())"),
        ("\n\ndef call", "\n\n@print\ndef call"),
        ("N_STREAMS = 2", "N_STREAMS = print()"),
    ],
)
def test_a_text_that_is_not_the_graphs_is_never_run(tmp_path: Path, old: str, new: str) -> None:
    path = with_source(program().save(tmp_path / "program.json"), old, new)
    load_program(path)
    with pytest.raises(FileError, match=r"program\.json: "):
        load_program(path, trust_source=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"waits": ["sigmoid"]', '"waits": []', "race on storage mm_1"),
        ('"reads": ["mm", "mm_1"]', '"reads": ["mm"]', r"add says that it reads \(mm\), but"),
        ('"stream": 1', '"stream": 7', "not 0, 1, 2"),
        ('{"value": "add"}', '{"value": "nothing"}', "nothing"),
    ],
)
def test_a_schedule_that_races_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = program().save(tmp_path / "program.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FileError, match=message):
        load_program(path)


def test_a_write_that_a_file_hides_is_known_from_the_schema(tmp_path: Path) -> None:
    with torch.no_grad():
        compiled = torch.compile(Mutates(), backend="nimble", options={"policy": "nimble"})
        compiled(torch.ones(3, 4), torch.ones(4))
    saved = nimble_fx.programs()[-1]
    tasks = [
        task.updated(writes=(), waits=()) if task.target == torch.ops.aten.copy_.default else task
        for task in saved.graph.tasks
    ]
    graph = saved.graph.replace_tasks(tasks)
    assert graph.n_waits < saved.graph.n_waits
    verify(graph)  # which believes what tasks say of memory
    with pytest.raises(FileError, match=r"copy_ says that it writes \(\), but that is \(x\)"):
        load_program(with_changes(saved, graph=graph).save(tmp_path / "lies.json"))


def test_an_operator_of_a_stranger_needs_trust(tmp_path: Path) -> None:
    path = program().save(tmp_path / "program.json")
    schema = str(torch.ops.aten.from_file.default._schema)
    text = path.read_text().replace("aten::sigmoid_", "aten::from_file")
    document = json.loads(text)
    document["operators"]["aten::from_file"] = schema
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match=r"sigmoid calls aten::from_file.*trust_source=True"):
        load_program(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"missing\.json: it cannot be read"):
        load_program(tmp_path / "missing.json")


def test_a_program_of_a_device_that_is_gone_cannot_be_bound() -> None:
    with pytest.raises(UnsupportedError, match="no device cuda:77"):
        with_changes(program(), device="cuda:77").bind(Branchy())


def test_constants_are_saved(tmp_path: Path) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.5, -0.0, math.inf])

    with torch.no_grad():
        expected = torch.compile(scaled, backend="nimble")(torch.ones(3))
    saved = nimble_fx.programs()[-1]
    assert len(saved.constants) == 1
    loaded = load_program(saved.save(tmp_path / "constants.json"))
    assert loaded.source == emit(saved.graph)
    assert_same_bits(loaded.bind({})(torch.ones(3)), [expected])
