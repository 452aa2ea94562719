"""For any history of a compiled model, its results, gradients and state are eager's.

A state machine calls the model with changing shapes, modes and weights, lets calls fail, keeps
outputs and drops them, resets the compiler and comes from other threads, beside an eager twin.
"""

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor, nn
from torch.nn import functional as F

SHAPES = st.sampled_from([2, 3])
SEEDS = st.integers(0, 3)


class Lives(nn.Module):
    """Branches, statistics, a buffer that counts, random draws and a table that can be missed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.seen: Tensor
        found = self.table(ids)
        left = torch.relu(self.left(x)) + found
        right = F.dropout(self.norm(self.right(x)), 0.5, self.training)
        self.seen += x.detach().sum(0)
        return left * right, left + self.seen


class Life(RuleBasedStateMachine):
    """A compiled model and its eager twin, to which the same happens."""

    options: ClassVar[dict[str, Any]]
    dynamic: ClassVar[bool] = False
    device: ClassVar[str] = "cpu"

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Lives().to(self.device)
        self.eager = copy.deepcopy(self.model)
        self.compiled = torch.compile(
            self.model, backend="nimble", dynamic=self.dynamic, options=self.options
        )
        self.kept: list[tuple[Any, Any]] = []
        self.waiting: list[Any] = []

    @rule(rows=SHAPES, seed=SEEDS, keep=st.booleans())
    def call(self, rows: int, seed: int, keep: bool) -> None:
        with torch.no_grad():
            ours, expected = (run(*self.inputs(rows, seed)) for run in self.seeded(seed))
        self.expect(ours, expected)
        if keep:
            self.kept.append((ours, expected))

    @rule(rows=SHAPES, seed=SEEDS)
    def train_step(self, rows: int, seed: int) -> None:
        grads = []
        for run, net in zip(self.seeded(seed), (self.model, self.eager), strict=True):
            net.zero_grad()
            first, second = run(*self.inputs(rows, seed))
            (first.square().sum() + second.sum()).backward()
            grads.append([p.grad for p in net.parameters()])
        self.expect(grads[0], grads[1], rtol=1e-4, atol=1e-5)

    @rule(rows=st.lists(SHAPES, min_size=2, max_size=4), seed=SEEDS, in_order=st.booleans())
    def forwards_before_their_backwards(self, rows: list[int], seed: int, in_order: bool) -> None:
        for sizes in (sorted(rows), rows):  # the first time in the order in which graphs are made
            self._forwards_before_their_backwards(sizes, seed, in_order)

    @rule(rows=SHAPES, seed=SEEDS)
    def forward_that_no_backward_follows(self, rows: int, seed: int) -> None:
        for run in self.seeded(seed):
            self.waiting.append(run(*self.inputs(rows, seed)))

    @rule(seed=SEEDS, rows=SHAPES)
    def call_from_another_thread(self, seed: int, rows: int) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.call, rows, seed, keep=True).result()

    @rule(rows=SHAPES, seed=SEEDS)
    def call_that_fails_in_a_kernel(self, rows: int, seed: int) -> None:
        x, _ = self.inputs(rows, seed)
        for run in (self.compiled, self.eager):
            with torch.no_grad(), pytest.raises(IndexError):
                run(x, torch.full((rows,), 7))
        # what was written before the error is anyone's guess, in eager too
        self.model.load_state_dict(self.eager.state_dict())

    @rule()
    def call_that_fails_in_the_trace(self) -> None:
        for run in (self.compiled, self.eager):
            with torch.no_grad(), pytest.raises(RuntimeError):
                run(self.inputs(5, 0)[0].view(-1, 5), self.inputs(4, 0)[1])
        self.model.load_state_dict(self.eager.state_dict())

    @rule(factor=st.sampled_from([0.5, 0.9, -1.0]))
    def change_parameters_in_place(self, factor: float) -> None:
        with torch.no_grad():
            for net in (self.model, self.eager):
                for parameter in net.parameters():
                    parameter.mul_(factor)

    @rule(assign=st.booleans(), seed=SEEDS)
    def load_other_weights(self, assign: bool, seed: int) -> None:
        torch.manual_seed(seed)
        state = Lives().to(self.device).state_dict()
        for net in (self.model, self.eager):
            net.load_state_dict(copy.deepcopy(state), assign=assign)

    @rule(train=st.booleans())
    def switch_mode(self, train: bool) -> None:
        self.model.train(train)
        self.eager.train(train)

    @precondition(lambda self: self.kept or self.waiting)
    @rule()
    def drop_outputs(self) -> None:
        self.kept.clear()
        self.waiting.clear()

    @rule()
    def reset(self) -> None:
        torch.compiler.reset()

    @invariant()
    def kept_outputs_are_as_they_were(self) -> None:
        for ours, expected in getattr(self, "kept", []):
            torch.testing.assert_close(ours, expected)

    @invariant()
    def state_is_eagers(self) -> None:
        if hasattr(self, "model"):
            torch.testing.assert_close(dict(self.model.state_dict()), dict(self.eager.state_dict()))

    def _forwards_before_their_backwards(self, rows: list[int], seed: int, in_order: bool) -> None:
        grads = []
        for run, net in zip(self.seeded(seed), (self.model, self.eager), strict=True):
            net.zero_grad()
            results = [run(*self.inputs(n, seed)) for n in rows]
            for first, second in results if in_order else results[::-1]:
                (first.square().sum() + second.sum()).backward()
            grads.append([p.grad for p in net.parameters()])
        self.expect(grads[0], grads[1], rtol=1e-4, atol=1e-5)

    def seeded(self, seed: int) -> Iterator[Callable[..., Any]]:
        """The compiled model and its twin, each once random numbers have begun anew."""
        for run in (self.compiled, self.eager):
            torch.manual_seed(seed)
            yield run

    def inputs(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """An `x` and `ids`, made on the device, so that no copy makes the host wait for it."""
        x = torch.linspace(-1, 1 + seed, rows * 4, device=self.device).sin().view(rows, 4)
        return x, (torch.arange(rows, device=self.device) + seed) % 5

    def expect(
        self, ours: Any, expected: Any, rtol: float | None = None, atol: float | None = None
    ) -> None:
        """Compares results of the model and its twin."""
        torch.testing.assert_close(ours, expected, rtol=rtol, atol=atol)


@contextmanager
def many_programs() -> Iterator[None]:
    """Dynamo may keep one for each mode, shape and way to call."""
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


class LifeOnCpu(Life):
    """In launch order."""

    options: ClassVar[dict[str, Any]] = {}


class LifeFrozen(Life):
    """Captured on the virtual device, and replayed in one order after another."""

    options: ClassVar[dict[str, Any]] = {"device": "virtual", "seed": 7}


class LifeOfManySizes(Life):
    """Captured with symbolic sizes, of which few have a graph at a time."""

    options: ClassVar[dict[str, Any]] = {
        "device": "virtual",
        "seed": 7,
        "max_graphs": 1,
        "on_fallback": "silent",
    }
    dynamic: ClassVar[bool] = True


class LifeUnfrozen(Life):
    """Launched on the virtual device in each call."""

    options: ClassVar[dict[str, Any]] = {"device": "virtual", "freeze": False, "policy": "nimble"}


LIVES = (LifeOnCpu, LifeFrozen, LifeOfManySizes, LifeUnfrozen)


@pytest.mark.slow
@pytest.mark.parametrize("machine", LIVES)
def test_any_life_of_a_compiled_model_is_eagers(machine: type[Life]) -> None:
    budget = settings(max_examples=5, stateful_step_count=15, phases=[Phase.generate])
    with many_programs():
        run_state_machine_as_test(machine, settings=budget)


@pytest.mark.parametrize("machine", LIVES)
def test_a_life_of_all_that_may_happen_is_eagers(machine: type[Life]) -> None:
    """Random lives of a few steps may leave out much."""
    life: Any = machine()
    with many_programs():
        life.begin(seed=0)
        for mode in (True, False):
            life.switch_mode(mode)
            life.call(rows=2, seed=1, keep=True)
            life.train_step(rows=3, seed=2)
            life.forwards_before_their_backwards(rows=[4, 2, 3], seed=3, in_order=mode)
            life.forward_that_no_backward_follows(rows=2, seed=4)
            life.call_that_fails_in_a_kernel(rows=3, seed=5)
            life.call_that_fails_in_the_trace()
            life.change_parameters_in_place(factor=0.9)
            life.call_from_another_thread(rows=2, seed=6)
            life.load_other_weights(assign=mode, seed=7)
            life.call(rows=3, seed=8, keep=True)
            life.train_step(rows=3, seed=9)
            life.kept_outputs_are_as_they_were()
            life.state_is_eagers()
            life.drop_outputs()
            life.reset()
    life.teardown()
