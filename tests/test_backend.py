"""What users see besides results: programs, files, errors, fallbacks."""

import copy
import errno
import pickle
import re
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.codegen.emit import emit
from nimble_fx.errors import NimbleWarning, OptionError, ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.insert_waits import InsertWaits
from tests.support.eager import assert_same, twins
from tests.support.models import CASES, Branchy, Inception


def test_programs_are_listed_oldest_first_and_reset_clears_them() -> None:
    compiled = torch.compile(Branchy(), backend="nimble")
    for _ in range(3):  # a reset need not be the first
        compiled(torch.randn(2, 4)).sum().backward()
        names = [program.name for program in nimble_fx.programs()]
        assert names == ["Branchy.forward (training)", "Branchy.forward (backward)"]
        torch.compiler.reset()
        assert nimble_fx.programs() == ()


def test_the_programs_inputs_have_the_users_names() -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble")(torch.randn(2, 4))
    inputs = {v.name: v.static for v in nimble_fx.programs()[0].graph.inputs}
    assert inputs == {"x": False, "a_weight": True, "b_weight": True}


def test_the_same_model_gives_the_same_text_twice() -> None:
    options: dict[str, Any] = {"fold_weights": True}  # or the text could depend on times
    texts = []
    for _ in range(2):
        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(Inception().eval(), backend="nimble", options=options)(
                torch.randn(1, 8, 4, 4)
            )
        texts.append(nimble_fx.programs()[0].source)
    assert texts[0] == texts[1]


def test_dump_writes_the_module_that_runs(tmp_path: Path) -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options={"dump": str(tmp_path)})(
            torch.randn(2, 4)
        )
    (program,) = nimble_fx.programs()
    assert program.path is not None
    assert program.path.parent == tmp_path
    assert program.path.read_text() == program.source
    assert str(program.path) in program.summary()


def test_a_dump_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nimble_fx.graph_compiler.write_atomically", full)
    compiled = torch.compile(Branchy(), backend="nimble", options={"dump": str(tmp_path)})
    with torch.no_grad(), pytest.warns(NimbleWarning, match="could not be written .*No space left"):
        compiled(torch.randn(2, 4))
    (program,) = nimble_fx.programs()
    assert program.path is None


def test_task_graphs_can_be_pickled_and_compared() -> None:
    torch.compile(Branchy(), backend="nimble")(torch.randn(2, 4))
    (program,) = nimble_fx.programs()
    assert copy.deepcopy(program.graph) == program.graph
    assert pickle.dumps(program.graph.inputs)


@pytest.mark.parametrize("options", [{"polcy": 1}, {"policy": "x"}, {"max_streams": -1}])
def test_a_bad_option_reaches_the_user_as_it_is(options: dict[str, Any]) -> None:
    compiled = torch.compile(Branchy(), backend="nimble", options=options)
    with pytest.raises(OptionError, match=r"valid|takes") as caught:
        compiled(torch.randn(2, 4))
    (printed,) = traceback.format_exception_only(caught.value)
    assert printed == f"nimble_fx.errors.OptionError: {caught.value}\n"
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert not any(frame.filename.endswith("symbolic_convert.py") for frame in frames)
    assert nimble_fx.programs() == ()


def test_an_option_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(OptionError) as caught:
        torch.compile(torch.sin, backend="nimble", options={"polcy": 1})(torch.ones(1))
    sent = pickle.loads(pickle.dumps(caught.value))
    assert type(sent) is OptionError
    assert str(sent) == str(caught.value)


def test_a_mode_it_does_not_know_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="valid modes: 'default'"):
        torch.compile(Branchy(), backend="nimble", mode="max-speed")(torch.randn(2, 4))


class Conditional(nn.Module):
    """A higher-order operator."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))  # the user's line


class Moves(nn.Module):
    """Two devices."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to("meta").sum().to("meta") * 2


@pytest.mark.parametrize(
    ("model", "x", "named"),
    [
        (Conditional(), torch.ones(3), r"cond.*higher-order operator.*the user's line"),
        (Moves(), torch.ones(3), "has tensors on meta, which nimble_fx does not know"),
    ],
)
def test_what_cannot_be_scheduled_runs_as_traced_and_says_why_once(
    model: nn.Module, x: Tensor, named: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(model, backend="nimble")
        results = [compiled(x) for _ in range(3)]
    messages = [str(w.message) for w in caught if w.category is NimbleWarning]
    assert len(messages) == 1
    assert "runs as traced" in messages[0]
    assert re.search(named, messages[0])
    expected = model(x)
    assert all(r.device == expected.device and r.shape == expected.shape for r in results)
    if expected.device.type == "cpu":
        assert torch.equal(results[0], expected)


def test_an_illegal_schedule_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_waits(self: InsertWaits, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        return graph

    monkeypatch.setattr(InsertWaits, "__call__", no_waits)
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble", options={"policy": "nimble"})
    with (
        pytest.warns(
            NimbleWarning, match="runs on one stream: its schedule is not legal.*report.*race"
        ),
        torch.no_grad(),
    ):
        assert_same(compiled(x), model(x))
    (program,) = nimble_fx.programs()
    assert program.graph.n_streams == 1
    program.verify()


@dataclass(frozen=True)
class InTurn:
    """A policy of a user: task after task on the next of so many streams; on none if 0."""

    n_streams: int = 2
    name = "in-turn"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        n = self.n_streams
        streams = {task.name: i % n for i, task in enumerate(graph.launching)} if n else {}
        return graph.with_streams(streams)


def test_a_policy_may_be_a_pass_of_the_users_own() -> None:
    model, x = Branchy(), torch.randn(2, 4)
    options: dict[str, Any] = {"policy": InTurn(), "device": "virtual"}
    with torch.no_grad():
        assert_same(torch.compile(model, backend="nimble", options=options)(x), model(x))
    (program,) = nimble_fx.programs()
    assert "in-turn(n_streams=2)" in program.graph.provenance
    assert [task.stream for task in program.graph.launching] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (InTurn(3), "it has 3 streams, of at most 2"),
        (InTurn(0), "mm launches kernels without a stream"),
    ],
)
def test_a_policy_that_makes_no_legal_schedule_is_not_run_and_named(
    policy: InTurn, why: str
) -> None:
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble", options={"policy": policy, "max_streams": 2})
    named = f"runs on one stream: the schedule of policy in-turn is not legal: .*{why}"
    with torch.no_grad(), pytest.warns(NimbleWarning, match=named):
        assert_same(compiled(x), model(x))


@dataclass(frozen=True)
class Forgets:
    """A policy of a user that changes what is computed: what must come first, or a number."""

    what: str
    name = "forgets"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        if self.what == "orders":
            tasks = [task.updated(after=(), stream=0) for task in graph.launching]
            streams = {task.name: i for i, task in enumerate(tasks)}
            changed = (t.updated(after=(), stream=streams.get(t.name)) for t in graph.tasks)
        else:
            changed = (
                t.updated(stream=0 if t.launches else None, args=tuple(map(_int, t.args)))
                for t in graph.tasks
            )
        return graph.replace_tasks(changed)


def _int(arg: object) -> object:
    return int(arg) if isinstance(arg, float) else arg


@pytest.mark.parametrize("what", ["orders", "numbers"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_policy_that_changes_the_program_is_caught_with_and_without_proofs(
    what: str, verify: bool
) -> None:
    def model(x: Tensor) -> Tensor:
        return (x.exp() + 1.0).sin() * torch.full((4,), 2.0)

    x = torch.randn(4)
    options: dict[str, Any] = {"policy": Forgets(what), "verify": verify}
    compiled = torch.compile(model, backend="nimble", options=options)
    with pytest.warns(NimbleWarning, match="the schedule of policy forgets is not legal"):
        assert_same(compiled(x), model(x))


@dataclass(frozen=True)
class Raises:
    """A policy of a user that fails."""

    name = "raises"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        raise KeyError(graph.name)


@pytest.mark.parametrize("train", [False, True])
def test_what_a_policy_raises_is_a_pass_error(train: bool) -> None:
    compiled = torch.compile(Branchy(), backend="nimble", options={"policy": Raises()})
    with (
        torch.set_grad_enabled(train),
        pytest.raises(
            nimble_fx.PassError, match="pass 'raises' raised KeyError: 'Branchy"
        ) as caught,
    ):
        compiled(torch.randn(2, 4))
    assert type(caught.value).__name__ == "PassError"


def test_a_module_that_lost_a_wait_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def losing_waits(graph: TaskGraph) -> str:
        return re.sub(r" +s\d\.wait_event\(e\.(?!fork).*\n", "", emit(graph))

    monkeypatch.setattr("nimble_fx.selection.select.emit", losing_waits)
    model, eager = twins(CASES["branchy"], train=False)
    x = torch.randn(2, 4)
    with (
        torch.no_grad(),
        pytest.warns(NimbleWarning, match=r"race on storage mm_1: add \(stream 0, <module>:"),
    ):
        assert_same(
            torch.compile(model, backend="nimble", options={"policy": "nimble"})(x), eager(x)
        )
    (program,) = nimble_fx.programs()
    assert program.graph.n_streams == 1
    assert "wait_event" not in program.source


def test_a_module_with_another_operator_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_operator(graph: TaskGraph) -> str:
        return emit(graph).replace("aten.sigmoid_.", "aten.relu_.")

    monkeypatch.setattr("nimble_fx.selection.select.emit", other_operator)
    model, eager = twins(CASES["branchy"], train=False)
    x = torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(NimbleWarning, match=r"(?s)runs as traced.*its operator:"):
        assert_same(torch.compile(model, backend="nimble")(x), eager(x))
    assert not nimble_fx.programs()


def test_verify_false_asks_for_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: nimble_fx.TaskGraph, traced: nimble_fx.TaskGraph) -> None:
        raise ScheduleError("looked at")

    monkeypatch.setattr("nimble_fx.selection.select.verify", refuse)
    monkeypatch.setattr("nimble_fx.selection.select.verify_source", refuse)
    torch.compile(Branchy(), backend="nimble", options={"verify": False})(torch.randn(2, 4))
    assert nimble_fx.programs()
