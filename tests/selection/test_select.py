"""The policy "auto" selects by simulation, and on a device that can time also by replays."""

import copy
import gc
import re
import weakref
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

import nimble_fx
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import find_device
from nimble_fx.devices.virtual.memory import Pool
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.selection.candidate import Candidate
from nimble_fx.selection.search_space import scheduled_candidates
from nimble_fx.selection.select import N_TIMED, timed_candidates
from tests.strategies import task_graphs
from tests.support.eager import assert_same, assert_training_is_eagers
from tests.support.models import CASES, Branchy, Tables
from tests.support.replaying import ReplayingDevice


class Wide(nn.Module):
    """Branches of which each policy makes another schedule."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.exp().sin().relu(), x.cos().tanh(), x.sigmoid().neg(), x.erf()])


@pytest.mark.parametrize("name", ["fork", "join", "host", "e", "call"])
def test_an_operator_may_have_any_name(name: str) -> None:
    def of(x: Tensor) -> Tensor:
        return x.exp()

    operator = torch.library.custom_op(f"nimble_names::{name}", of, mutates_args=())
    operator.register_fake(torch.empty_like)

    def program(x: Tensor) -> Tensor:
        return (operator(x) + x.sin()) * x.cos()

    x = torch.randn(4, 4)
    plan: Any = nimble_fx.plan(program, x, device="h100", on_fallback="error")
    assert plan.graph.n_streams == 3


class TimedDevice(ReplayingDevice):
    """A virtual device whose replays take times of one's choice.

    Attributes:
        milliseconds: the times, of which each timing takes the next.
        pools: the memory pools that it has made.
    """

    can_time = True

    def __init__(self) -> None:
        self.pools = list[weakref.ref[Pool]]()
        self.milliseconds: Iterator[float] = repeat(1.0)
        super().__init__()

    def pool(self) -> Pool:
        pool = super().pool()
        self.pools.append(weakref.ref(pool))
        return pool

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        return 1000 * next(self.milliseconds)

    def set_times(self, *milliseconds: float, n: int = N_TIMED + 1) -> None:
        """Sets the times of the schedules, in the order of a trial: the serial one is first.

        Those for which no time is given take the last one.
        """
        self.milliseconds = cycle([*milliseconds, *milliseconds[-1:] * (n - len(milliseconds))])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> TimedDevice:
    """Every program runs on this device."""
    device = TimedDevice()
    monkeypatch.setattr("nimble_fx.this_machine.device_for", lambda _: device)
    return device


def called(model: nn.Module, *inputs: Any, **options: Any) -> nimble_fx.Program:
    """The one program of a model, once it has been called."""
    with torch.no_grad():
        torch.compile(model, backend="nimble", options=options)(*inputs)
    (program,) = nimble_fx.programs()
    return program


def chosen(program: nimble_fx.Program) -> Candidate:
    (one,) = [each for each in program.candidates if each.chosen]
    return one


def test_on_a_cpu_there_is_one_queue_and_one_candidate() -> None:
    program = called(Branchy(), torch.randn(2, 4))
    (only,) = program.candidates
    assert (only.policy, only.chosen, only.measured_us) == ("serial", True, None)
    assert program.graph.n_streams == 1


def test_without_a_device_to_time_on_the_best_prediction_runs() -> None:
    program = nimble_fx.plan(Wide(), torch.randn(64), device="h100")
    assert chosen(program) is program.candidates[0]
    assert chosen(program).predicted_us == min(each.predicted_us for each in program.candidates)
    assert chosen(program).n_streams == program.graph.n_streams > 1
    assert all(each.measured_us is None for each in program.candidates)
    assert program.alternatives == ()
    won = [each.predicted_us for each in program.candidates]
    (serial,) = [each.predicted_us for each in program.candidates if each.policy == "serial"]
    assert sorted(us for us in won if us < 0.99 * serial) == won[: won.index(serial)]


def test_the_schedule_with_the_fastest_replays_runs(timed: TimedDevice) -> None:
    timed.set_times(0.8, 0.9, 0.5, 0.7)
    program = called(Wide(), torch.randn(64))
    measured = [each for each in program.candidates if each.measured_us is not None]
    assert len(measured) == N_TIMED + 1
    assert chosen(program) is program.candidates[1]
    assert chosen(program).measured_us == pytest.approx(500)
    assert chosen(program).n_streams == program.graph.n_streams
    assert nimble_fx.programs() == (program,)
    assert program.alternatives == ()
    program.verify()


@given(task_graphs())
def test_of_equal_schedules_one_is_timed_and_the_serial_one_always(graph: TaskGraph) -> None:
    found = scheduled_candidates(graph, Roofline(find_device("h100")), 32, {}, timed=True)
    timed = timed_candidates(found)
    assert len(timed) <= N_TIMED + 1
    assert [each for each in found if each in timed] == timed
    assert sum(each.candidate.policy == "serial" for each in timed) == 1
    schedules = [(each.graph.tasks, each.graph.urgent) for each in timed]
    assert all(schedules.count(each) == 1 for each in schedules)
    ranks = [i for i, each in enumerate(found) if each in timed]
    serial = next(i for i, each in enumerate(found) if each.candidate.policy == "serial")
    last = max((i for i in ranks if i != serial), default=0)
    for each in found[:last]:
        assert (each.graph.tasks, each.graph.urgent) in schedules


def test_the_serial_one_runs_unless_another_wins_by_the_margin(timed: TimedDevice) -> None:
    timed.set_times(1.0, 0.995, 1.0)
    program = called(Wide(), torch.randn(64))
    assert chosen(program).policy == "serial"
    assert program.graph.n_streams == 1
    assert "wait_event" not in program.source


def test_the_table_is_in_the_summary(timed: TimedDevice) -> None:
    timed.set_times(0.8, 0.9, 0.5, 0.7)
    program = called(Wide(), torch.randn(64))
    lines = program.summary().splitlines()[-len(program.candidates) :]
    for line, each in zip(lines, program.candidates, strict=True):
        assert line.strip().startswith(each.policy)
        assert line.endswith("runs") == each.chosen


@pytest.mark.slow
@pytest.mark.usefixtures("timed")
def test_training_chooses_for_forward_and_backward_and_gives_eagers_gradients() -> None:
    assert_training_is_eagers(CASES["dropout"])
    forward, backward = nimble_fx.programs()
    for program in (forward, backward):
        assert len([each for each in program.candidates if each.chosen]) <= 1
        assert program.status.n_captures == 1


@pytest.mark.gpu
def test_a_trial_draws_no_random_numbers() -> None:
    model, x = nn.Sequential(Wide(), nn.Dropout(0.5)).train(), torch.ones(64, device="cuda")
    with torch.no_grad():
        torch.manual_seed(0)
        expected = [model(x) for _ in range(2)]
        torch.manual_seed(0)
        compiled = torch.compile(model, backend="nimble")
        assert_same([compiled(x) for _ in range(2)], expected)
    (program,) = nimble_fx.programs()
    assert len([each for each in program.candidates if each.measured_us is not None]) > 1


def test_the_losers_memory_is_given_back(timed: TimedDevice) -> None:
    timed.set_times(0.8, 0.9, 0.5, 0.7)
    model = Tables()
    program = called(model, *CASES["tables"].inputs())
    gc.collect()
    assert len([each for each in program.candidates if each.measured_us]) > 1
    assert program.status.n_graphs == 1
    assert sum(pool() is not None for pool in timed.pools) == 2  # the host's, and the winner's


def test_a_schedule_for_which_there_is_no_memory_is_no_candidate_any_longer(
    timed: TimedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.set_times(0.8, 0.5, 0.7, 0.8, n=N_TIMED)
    capture, n_calls = timed.capture, iter(range(99))

    def failing(n: int, *args: Any, **kwargs: Any) -> Any:
        if next(n_calls) == 1:  # behind the serial one
            raise torch.OutOfMemoryError("CUDA out of memory")
        return capture(n, *args, **kwargs)

    monkeypatch.setattr(timed, "capture", failing)
    model, x = Wide(), torch.randn(64)
    eager = copy.deepcopy(model)
    with torch.no_grad():
        compiled = torch.compile(model, backend="nimble")
        assert_same(compiled(x), eager(x))
    (program,) = nimble_fx.programs()
    assert program.candidates[0].measured_us is None
    assert chosen(program) is program.candidates[1]
    assert program.status.frozen


@pytest.mark.parametrize("policy", ["auto", "critical-path"])
def test_sizes_that_depend_on_data_cannot_be_predicted_and_one_stream_it_is(policy: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero()
        return found.float().exp() + found.float().sin()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(
            program,
            backend="nimble",
            options={"device": "virtual", "on_fallback": "silent", "policy": policy},
        )
        x = torch.tensor([1.0, 0.0, 2.0])
        assert_same(compiled(x), program(x))
    (made,) = nimble_fx.programs()
    assert made.candidates == ()
    assert made.graph.n_streams == 1


@pytest.mark.usefixtures("timed")
def test_what_cannot_be_costed_is_said_where_streams_could_have_gained() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        part = x[: int(x.shape[0] ** 0.5)]
        return part.exp() + part.sin().relu().exp()

    x = torch.randn(16, 3)
    compiled = torch.compile(program, backend="nimble", dynamic=True)
    with pytest.warns(nimble_fx.NimbleWarning, match="runs on one stream: the costs of its tasks"):
        assert_same(compiled(x), program(x))


def test_where_nothing_can_be_measured_it_is_said(tmp_path: Path) -> None:
    options: Any = {"device": "virtual", "cost_dir": tmp_path, "policy": "critical-path"}
    compiled = torch.compile(Branchy(), backend="nimble", options=options)
    message = "cost_dir: nothing could be measured: .*orders, not time"
    with torch.no_grad(), pytest.warns(nimble_fx.NimbleWarning, match=message):
        compiled(torch.randn(2, 4))


def test_an_operator_whose_cost_is_odd_compiles() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, 0, i) + 1

    x, i = torch.tensor(1.0), torch.tensor(0)
    assert_same(torch.compile(program, backend="nimble")(x, i), program(x, i))
    assert nimble_fx.programs()[0].candidates


def test_a_trial_that_an_interrupt_ended_is_held_again(timed: TimedDevice) -> None:
    def interrupted() -> Iterator[float]:
        yield 1.0
        timed.milliseconds = repeat(1.0)
        raise KeyboardInterrupt

    timed.milliseconds = interrupted()
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            compiled(x)
        assert_same(compiled(x), model(x))
    (program,) = nimble_fx.programs()
    assert any(each.measured_us is not None for each in program.candidates)


def test_with_a_directory_of_costs_tasks_are_measured_once(tmp_path: Path) -> None:
    model, x = Branchy(), torch.randn(2, 4)
    first = called(model, x, cost_dir=tmp_path).candidates
    (file,) = tmp_path.glob("*.json")
    written = file.read_text()
    torch.compiler.reset()
    assert called(model, x, cost_dir=tmp_path).candidates == first
    assert file.read_text() == written
    torch.compiler.reset()
    assert called(model, x).candidates[0].predicted_us != first[0].predicted_us


def test_a_broken_table_of_costs_is_said_and_the_roofline_asked(tmp_path: Path) -> None:
    called(Branchy(), torch.randn(2, 4), cost_dir=tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    torch.compiler.reset()
    with pytest.warns(nimble_fx.NimbleWarning, match=re.escape(f"cost_dir: {file}")):
        program = called(Branchy(), torch.randn(2, 4), cost_dir=tmp_path)
    assert program.candidates
    assert file.read_text() == "{"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
