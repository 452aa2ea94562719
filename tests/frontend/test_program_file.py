"""A loaded program equals the saved one, and nothing in a file is run."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nimble_fx
from nimble_fx import load as load_program
from nimble_fx.codegen.emit import emit
from nimble_fx.errors import FileError, UnsupportedError
from nimble_fx.verify import verify
from tests.support.bits import assert_same_bits
from tests.support.models import Branchy, Mutates
from tests.support.playing import SEED
from tests.support.saved import (
    branchy_program,
    mutations,
    program_of,
    programs_of_models,
    with_changes,
)
from tests.support.trials import Trial, trials


@pytest.mark.slow
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
    assume("aten.t_.default" not in trial.program.operators())  # it turns its argument: refused
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
    path = branchy_program().save(tmp_path / "program.json")
    ran: list[str] = []
    monkeypatch.setattr("nimble_fx.program.load", lambda source, _: ran.append(source))
    load_program(path)
    load_program(path, trust_source=True)
    assert ran == []


def test_the_same_program_is_saved_as_the_same_text(tmp_path: Path) -> None:
    texts = []
    for i in range(2):
        torch.compiler.reset()
        texts.append(branchy_program().save(tmp_path / f"{i}.json").read_text())
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
    path = with_source(
        branchy_program().save(tmp_path / "p.json"), "import torch", "import torch  # mine"
    )
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
    path = with_source(branchy_program().save(tmp_path / "program.json"), old, new)
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
    path = branchy_program().save(tmp_path / "program.json")
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
        task.updated(writes=(), waits=()) if task.writes == ("x",) else task
        for task in saved.graph.tasks
    ]
    graph = saved.graph.replace_tasks(tasks)
    assert graph.n_waits < saved.graph.n_waits
    verify(graph)  # which believes what tasks say of memory
    with pytest.raises(FileError, match=r"mul says that it writes \(\), but that is \(x\)"):
        load_program(with_changes(saved, graph=graph).save(tmp_path / "lies.json"))


def test_an_operator_of_a_stranger_needs_trust(tmp_path: Path) -> None:
    path = branchy_program().save(tmp_path / "program.json")
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
        with_changes(branchy_program(), device="cuda:77").bind(Branchy())


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


@pytest.mark.parametrize("path", ["~nobody_of_this_name/x", "a\0b"])
def test_a_path_that_cannot_be_is_an_error_of_the_file(path: str) -> None:
    with pytest.raises(FileError):
        branchy_program().save(path)
    with pytest.raises(FileError):
        load_program(path)
