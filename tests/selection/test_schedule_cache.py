"""Schedules on disk: made once, proved each time, and replaced if they do not fit."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import NimbleWarning, ScheduleError
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.pipeline import schedule
from tests.support.bits import assert_same_bits
from tests.support.models import CASES, Branchy

X = torch.ones(2, 4)
IN_ANOTHER_PROCESS = """
import sys, torch
import nimble_fx.selection.select as choose, nimble_fx
from tests.support.models import Branchy

choose.scheduled_candidates = choose.emit = None
torch.compile(Branchy(), backend="nimble", options={"cache_dir": sys.argv[1]})(torch.ones(2, 4))
print(len(nimble_fx.programs()))
"""


@pytest.fixture(autouse=True)
def _no_warning_unless_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NimbleWarning)
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that were scheduled and emitted, one entry for each."""
    names: list[str] = []

    def counting(graph: nimble_fx.TaskGraph, pipeline: Any) -> nimble_fx.TaskGraph:
        names.append(graph.name)
        return schedule(graph, pipeline)

    monkeypatch.setattr("nimble_fx.selection.select.schedule", counting)
    return names


def compiled(
    model: Callable[..., Any], directory: Path, *inputs: Any, **options: Any
) -> tuple[Any, nimble_fx.Program]:
    """The model's result as if in a new process, and its program."""
    torch.compiler.reset()
    options = {"policy": "nimble", **options, "cache_dir": directory}
    with torch.no_grad():
        result = torch.compile(model, backend="nimble", options=options)(*(inputs or (X,)))
    return result, nimble_fx.programs()[-1]


def test_the_second_compile_runs_no_pass_and_emits_nothing(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Branchy()
    expected, first = compiled(model, tmp_path)
    assert made == ["Branchy.forward"]
    monkeypatch.setattr("nimble_fx.selection.select.emit", None)
    result, second = compiled(model, tmp_path)
    assert made == ["Branchy.forward"]
    assert_same_bits(result, expected)
    assert (second.graph, second.source) == (first.graph, first.source)
    assert second.parameters == first.parameters
    assert_same_bits(compiled(model, tmp_path, verify=False)[0], expected)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_program_with_nan_for_a_constant_is_found_again(tmp_path: Path, made: list[str]) -> None:
    def program(x: Tensor) -> Tensor:
        return x.masked_fill(x > 0, float("nan")) + float("nan")

    for _ in range(2):
        compiled(program, tmp_path)
    assert len(made) == 1


@pytest.mark.slow
def test_a_second_process_runs_no_pass(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path}
    torch.compile(Branchy(), backend="nimble", options=options)(torch.ones(2, 4))
    assert len(list(tmp_path.iterdir())) == 1
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["googlenet", "transformer_dropout"])
def test_training_takes_both_its_programs_over(name: str, tmp_path: Path, made: list[str]) -> None:
    model, inputs, gradients = CASES[name].model(), CASES[name].inputs(), []
    state = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(2):
        torch.compiler.reset()
        torch.manual_seed(1)
        model.load_state_dict(state)
        model.zero_grad()
        options: dict[str, Any] = {"cache_dir": tmp_path, "policy": "nimble"}
        torch.compile(model, backend="nimble", options=options)(*inputs).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
        assert len(made) == 2
    assert_same_bits(gradients[1], gradients[0])


@pytest.mark.parametrize(
    "options", [{"policy": "serial"}, {"max_streams": 1}, {"device": "virtual"}], ids=str
)
def test_what_matters_to_the_schedule_has_a_file_of_its_own(
    options: dict[str, Any], tmp_path: Path, made: list[str]
) -> None:
    model = Branchy()
    expected, _ = compiled(model, tmp_path)
    for _ in range(2):
        assert_same_bits(compiled(model, tmp_path, **options)[0], expected)
        assert len(made) == 2
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("policy", ["auto", "critical-path"])
def test_a_schedule_with_priorities_is_not_taken_without(policy: str, tmp_path: Path) -> None:
    for priorities in (True, False, True):
        compiled(Branchy(), tmp_path, policy=policy, device="virtual", priorities=priorities)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("policy", ["auto", "critical-path"])
def test_a_schedule_by_measured_times_is_not_taken_for_one_by_predicted_times(
    policy: str, tmp_path: Path
) -> None:
    for times in ({"cost_dir": tmp_path / "times"}, {}, {"cost_dir": tmp_path / "times"}):
        compiled(Branchy(), tmp_path / "schedules", policy=policy, **times)
    assert len(list((tmp_path / "schedules").iterdir())) == 2


def test_what_does_not_matter_has_not(tmp_path: Path, made: list[str]) -> None:
    compiled(Branchy(), tmp_path)
    compiled(Branchy(), tmp_path, freeze=False, dump=tmp_path / "dump")
    assert len(made) == 1


def test_another_program_or_constant_has_a_file_of_its_own(tmp_path: Path, made: list[str]) -> None:
    def scaled(number: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * torch.tensor([number, 2.0, 3.0, 4.0])

    for number in (1.0, 5.0, 1.0):
        result, program = compiled(scaled(number), tmp_path)
        assert_same_bits(result, scaled(number)(X))
        assert len(program.constants) == 1
    assert len(made) == 2
    compiled(scaled(1.0), tmp_path, torch.ones(3, 4))
    assert len(made) == 3


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_text(""), "not a program file"),
    "cut off": (lambda path: path.write_text(path.read_text()[:700]), "not a program file"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    "other version": (
        lambda path: edited(path, f'"nimble_fx": "{nimble_fx.__version__}"', '"nimble_fx": "0"'),
        "written with nimble_fx '0'",
    ),
    "race": (lambda path: edited(path, '"waits": ["sigmoid"]', '"waits": []'), "race on storage"),
    "other operator": (
        lambda path: edited(path, '"target": "aten::sigmoid_"', '"target": "aten::relu_"'),
        "changes target",
    ),
    "other text": (lambda path: edited(path, "aten.sigmoid_", "aten.relu_"), "its operator"),
    "other policy": (lambda path: edited(path, "None)", "7)"), "not Branchy.forward by"),
    "other name": (lambda path: edited(path, '"name": "Bran', '"name": "Pran'), "it is Pran"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("verify", [True, False])
def test_a_broken_or_stale_file_is_said_and_written_anew(
    kind: str, verify: bool, tmp_path: Path, made: list[str]
) -> None:
    damage, message = BROKEN[kind]
    model = Branchy()
    expected, _ = compiled(model, tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_text()
    damage(path)
    with pytest.warns(NimbleWarning, match=rf"(?s)json is not used.*{message}"):
        result, _ = compiled(model, tmp_path, verify=verify)
    assert_same_bits(result, expected)
    assert len(made) == 2
    assert path.read_text() == good
    compiled(model, tmp_path)
    assert len(made) == 2


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path, made: list[str]) -> None:
    directory = tmp_path / "cache"

    def take_away(*_: object) -> None:
        raise OSError("disk full")

    model = Branchy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.replace", take_away)
        with pytest.warns(NimbleWarning, match="cannot be written: disk full"):
            result, _ = compiled(model, directory)
    assert_same_bits(result, model(X).detach())
    assert list(directory.iterdir()) == []


def test_a_schedule_that_is_not_legal_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_stream_each(step: AssignStreams, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        if step.policy == "serial":
            return serial(step, graph)
        raise ScheduleError("a bug")

    serial = AssignStreams.__call__
    monkeypatch.setattr(AssignStreams, "__call__", one_stream_each)
    for _ in range(2):
        with pytest.warns(NimbleWarning, match="runs on one stream: its schedule is not legal"):
            compiled(Branchy(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_more_streams_than_may_be_is_not_used(tmp_path: Path) -> None:
    model, x = Branchy(), X
    limited: dict[str, Any] = {"policy": "auto", "device": "virtual", "max_streams": 1}
    compiled(model, tmp_path, x, **limited)
    (file,) = tmp_path.iterdir()
    _, wide = compiled(model, tmp_path / "wide", x, policy="nimble", device="virtual")
    wide.save(file)
    with pytest.warns(NimbleWarning, match="it has 2 streams, of at most 1"):
        _, program = compiled(model, tmp_path, x, **limited)
    assert program.graph.n_streams == 1


@pytest.mark.parametrize("policy", ["auto", "critical-path"])
def test_what_is_chosen_for_some_sizes_is_not_taken_for_others(policy: str, tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.stack([(x * i).exp() for i in range(6)]).sum() + (x @ x.t()).sum()

    for n in (4, 4096):
        torch.compiler.reset()
        options: dict[str, Any] = {"policy": policy, "device": "virtual", "cache_dir": tmp_path}
        torch.compile(program, backend="nimble", dynamic=True, options=options)(torch.ones(n, 8))
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_may_share_a_directory(tmp_path: Path) -> None:
    from nimble_fx.codegen.emit import emit
    from nimble_fx.devices.cpu import Cpu
    from nimble_fx.ir.scheduled_program import ScheduledProgram
    from nimble_fx.pipeline import passes_for
    from nimble_fx.selection.schedule_cache import ScheduleCache
    from nimble_fx.selection.traced_program import TracedProgram
    from tests.support.schedules import traced

    program = TracedProgram(traced(nn.functional.gelu, X), {}, Cpu(), Cpu.specs)
    graph = schedule(program.graph, passes_for("nimble", None))
    scheduled = program.scheduled(graph, emit(graph))
    made: list[ScheduledProgram] = []
    found: list[ScheduledProgram] = []

    def get() -> None:
        for _ in range(20):
            entry = ScheduleCache(tmp_path, warnings.warn).entry(program, ["nimble"])
            taken = entry.find()
            if taken is None:
                taken = scheduled
                made.append(taken)
                entry.store(taken)
            found.append(taken)

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [scheduled] * 160
    assert 1 <= len(made) <= 8
    assert len(list(tmp_path.iterdir())) == 1


def test_a_kept_file_is_a_program_file(tmp_path: Path) -> None:
    _, program = compiled(Branchy(), tmp_path)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["name"] == "Branchy.forward"
    assert nimble_fx.load(path).graph == program.graph
    assert program.save(tmp_path / "saved.json").read_text() == path.read_text()
