"""Whatever launch fails, the result is eager's where it can be, and nothing is left behind.

The k-th launch of a compiled model's life raises, for each k: in a warm-up, in the capture, as
inputs and outputs are copied, as the graph is replayed, as the program runs unfrozen.
"""

import copy
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from nimble_fx.errors import StateError
from nimble_fx.runtime.capture import autotuning
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from tests.support.bits import assert_same_bits
from tests.support.eager import assert_same, twins
from tests.support.faults import Faulty, step
from tests.support.models import CASES
from tests.support.replaying import ReplayingDevice

pytestmark = pytest.mark.slow


class Timing(ReplayingDevice):
    """Its replays take the same time each."""

    can_time = True

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        for _ in range(n):
            replay()
        return 1.0


@pytest.fixture
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """The device that every program of the backend runs on."""
    monkeypatch.setattr(gc, "collect", int)  # memory must be given back without its help
    monkeypatch.setattr(autotuning, "N_ROUNDS", 2)
    monkeypatch.setattr(autotuning, "N_REPLAYS", 2)
    device: ReplayingDevice = getattr(request, "param", ReplayingDevice)()
    monkeypatch.setattr("nimble_fx.this_machine.device_for", lambda _: device)
    return Faulty(device, monkeypatch)


@dataclass
class Life:
    """A compiled model beside an eager one, from the first call on, again and again."""

    faulty: Faulty
    name: str
    train: bool = False
    freeze: bool = True
    policy: str = "nimble"

    def __post_init__(self) -> None:
        self.model, self.eager = twins(CASES[self.name], self.train)
        self._start = copy.deepcopy(self.eager.state_dict())
        options: dict[str, Any] = {"freeze": self.freeze, "on_fallback": "silent"}
        options["policy"] = self.policy
        self._compiled = torch.compile(self.model, backend="nimble", options=options)
        self._settled = self.faulty.left_over()

    def n_launches(self) -> int:
        """How many launches two calls take."""
        self.begin(None)
        self.assert_works()
        self.assert_works()
        return len(self.faulty.phases)

    def begin(self, fails_at: int | None) -> None:
        for net in (self.model, self.eager):
            net.load_state_dict(self._start)
        self.faulty.begin(fails_at)

    def assert_works(self) -> None:
        """A call gives eager's bits, from the state that the model is in now."""
        self.faulty.device.synchronize()  # the state of the stand-in's tensors is the host's memory
        self.eager.load_state_dict(self.model.state_dict())
        inputs = CASES[self.name].inputs()
        theirs = copy.deepcopy(inputs)
        ours = step(self.model, self._compiled, inputs, self.train)
        self._compare([ours, inputs], [step(self.eager, self.eager, theirs, self.train), theirs])
        self._compare(dict(self.model.state_dict()), dict(self.eager.state_dict()))

    def _compare(self, ours: Any, expected: Any) -> None:
        (assert_same if self.train else assert_same_bits)(ours, expected)

    def call_twice(self) -> None:
        for _ in range(2):
            step(self.model, self._compiled, CASES[self.name].inputs(), self.train)

    def assert_fails(self) -> None:
        """A call raises the fault's error."""
        before = len(self.faulty.phases)
        with pytest.raises(self.faulty.error):
            self.call_twice()
        assert len(self.faulty.phases) > before

    @property
    def is_frozen(self) -> bool:
        return all(program.is_frozen for program in self.faulty.programs)

    def assert_settled(self) -> None:
        self.faulty.device.synchronize()
        assert self.faulty.left_over() == self._settled


def assert_each_fault_is_survived(life: Life, step: int = 1) -> None:
    n, n_lost = life.n_launches(), 0
    phases = list(life.faulty.phases)
    assert True in phases
    for k in range(0, n, step):
        life.begin(k)
        is_lost = False
        try:
            (life.assert_works if phases[k] else life.assert_fails)()
        except StateError:
            is_lost = True
            n_lost += 1
        life.assert_settled()
        life.assert_works()
        assert not any(pool() for pool in life.faulty.pools_at_fault)
        assert life.is_frozen == (is_lost or not phases[k])
    assert n_lost in (0, WARM_UPS * life.faulty.n_mutated)
    life.begin(None)
    life.assert_works()
    assert life.is_frozen


@pytest.mark.parametrize("name", ["branchy", "cache"])
def test_in_inference_a_recording_that_fails_costs_nothing_but_speed(
    name: str, faulty: Faulty
) -> None:
    assert_each_fault_is_survived(Life(faulty, name))


@pytest.mark.parametrize("name", ["dropout"])
def test_in_training_a_recording_that_fails_costs_nothing_but_speed(
    name: str, faulty: Faulty
) -> None:
    assert_each_fault_is_survived(Life(faulty, name, train=True), step=3)  # of no period


@pytest.mark.parametrize("faulty", [Timing], indirect=True)
def test_a_fault_in_a_trial_of_schedules_costs_at_most_speed(faulty: Faulty) -> None:
    life = Life(faulty, "cache", policy="auto")
    n = life.n_launches()
    for k in (*range(0, n - 10, 10), *range(n - 10, n)):  # each would take a minute
        life.begin(k)
        for _ in range(2):
            with suppress(StateError, faulty.error):
                life.assert_works()
        life.assert_settled()
        life.assert_works()
        assert not any(pool() for pool in faulty.pools_at_fault)


def test_an_interrupt_at_any_launch_comes_out_and_the_next_call_captures(faulty: Faulty) -> None:
    life = Life(faulty, "branchy")
    n, faulty.error = life.n_launches(), KeyboardInterrupt
    for k in range(n):
        life.begin(k)
        life.assert_fails()
        life.assert_settled()
        life.assert_works()
        assert life.is_frozen


@pytest.mark.parametrize("name", ["branchy", "cache", "dropout"])
def test_an_unfrozen_program_that_fails_raises_and_works_the_next_time(
    name: str, faulty: Faulty
) -> None:
    life = Life(faulty, name, freeze=False)
    for k in range(life.n_launches()):
        life.begin(k)
        life.assert_fails()
        life.assert_settled()
        life.assert_works()


def test_a_program_that_fails_each_time_is_not_to_blame_on_its_capture(faulty: Faulty) -> None:
    life = Life(faulty, "branchy")
    life.n_launches()
    faulty.begin(None)
    faulty.fails_from = 0
    life.assert_fails()
    faulty.fails_from = None
    life.assert_works()
    assert life.is_frozen
