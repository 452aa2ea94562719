"""Compiled code is freed with its owner, whatever happened before.

A state machine compiles, calls, saves, loads, binds, resets and drops what it has in any order.
Then it drops the rest, and nothing may be left.
"""

import contextlib
import gc
import linecache
import os
import tempfile
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor, nn

import nimble_fx
from nimble_fx.fallback import Reporter
from nimble_fx.runtime.bound_program import BoundProgram
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.graph_cache import GraphCache
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.launch import Launcher
from tests.scenarios.test_life import many_programs

pytestmark = pytest.mark.slow

OPTIONS: list[dict[str, Any]] = [
    {},
    {"device": "virtual"},
    {"device": "virtual", "policy": "nimble", "freeze": False},
    {"device": "virtual", "copy_outputs": False, "max_graphs": 1},
]
KINDS = (
    PoolGroup,
    BoundProgram,
    FrozenProgram,
    GraphCache,
    Launcher,
    nimble_fx.Program,
    CapturedGraph,
    Reporter,
)
"""What may hold memory of a compiled model."""


class Net(nn.Module):
    """Parameters, a buffer that is written, and a constant in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen: Tensor
        self.seen += x.detach().sum(0)
        return torch.relu(self.left(x)) * torch.tensor([1.0, 2.0, 3.0]) + self.right(x)


@dataclass(frozen=True)
class Raises:
    """A policy that raises."""

    name = "raises"

    def __call__(self, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        raise ArithmeticError(graph.name)


def alive() -> "weakref.WeakSet[object]":
    """The objects that may hold memory of a compiled model; those of earlier tests may yet go."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that gc lists
        return weakref.WeakSet(each for each in gc.get_objects() if type(each) in KINDS)


def texts() -> set[str]:
    """The emitted texts that tracebacks would show."""
    return {file for file in linecache.cache if file.startswith("<nimble_fx")}


def open_files() -> int:
    """How many file descriptors the process has."""
    return len(os.listdir("/proc/self/fd"))


class Lifetime(RuleBasedStateMachine):
    """Compiled objects and programs that come and go.

    What `torch.compile` made PyTorch keeps until a reset; all else must go without one.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.compiler.reset()
        self.earlier = alive()
        self.texts_before, self.files_before = texts(), open_files()
        self.compiled: list[nimble_fx.Compiled] = []
        self.results: list[Tensor] = []
        self.programs: list[nimble_fx.Program] = []
        self.bound: list[BoundProgram] = []
        self.errors: list[BaseException] = []
        self.is_kept_by_pytorch = False
        self.witnesses: list[weakref.ref[Any]] = []
        self.directory = tempfile.TemporaryDirectory()
        self.file = Path(self.directory.name) / "program.json"

    @rule(options=st.sampled_from(OPTIONS), training=st.booleans(), rows=st.integers(2, 3))
    def compile(self, options: dict[str, Any], training: bool, rows: int) -> None:
        model = Net()
        made = nimble_fx.compile(model, torch.randn(rows, 3), training=training, **options)
        self.compiled.append(made)
        self.watch([made, model, model.left.weight])

    @rule(options=st.sampled_from(OPTIONS), training=st.booleans())
    def compile_as_pytorch_does(self, options: dict[str, Any], training: bool) -> None:
        model = Net()
        with torch.set_grad_enabled(training):
            torch.compile(model, backend="nimble", options=dict(options))(torch.randn(2, 3))
        self.watch([model, model.left.weight])
        self.is_kept_by_pytorch = True

    @rule(keep=st.booleans())
    def compile_that_fails(self, keep: bool) -> None:
        try:
            nimble_fx.compile(Net(), torch.randn(2, 3), policy=Raises())
        except nimble_fx.NimbleError as error:
            self.errors += [error] if keep else []

    @rule(training=st.booleans())
    def plan(self, training: bool) -> None:
        plan: Any = nimble_fx.plan
        planned = plan(nn.Linear(3, 3), torch.randn(2, 3), device="h100", training=training)
        self.watch(planned if training else [planned])

    @precondition(lambda self: self.compiled)
    @rule(rows=st.integers(2, 4), keep=st.booleans())
    def call(self, rows: int, keep: bool) -> None:
        result = self.compiled[-1](torch.randn(rows, 3))
        if result.requires_grad:
            result.sum().backward()
        self.results += [result] if keep else []

    @precondition(lambda self: self.compiled and self.compiled[-1].programs)
    @rule()
    def save(self) -> None:
        self.compiled[-1].programs[0].save(self.file)

    @precondition(lambda self: self.file.exists())
    @rule()
    def load(self) -> None:
        self.programs.append(nimble_fx.load(self.file))

    @precondition(lambda self: self.programs)
    @rule()
    def bind(self) -> None:
        self.bound.append(self.programs[-1].bind(Net()))

    @precondition(lambda self: self.bound)
    @rule(rows=st.integers(2, 3))
    def call_bound(self, rows: int) -> None:
        with contextlib.suppress(nimble_fx.InputError):  # of other shapes
            self.results += self.bound[-1](torch.randn(rows, 3))

    @rule()
    def reset(self) -> None:
        torch.compiler.reset()
        self.is_kept_by_pytorch = False
        assert nimble_fx.programs() == ()
        assert not any(each.programs for each in self.compiled)

    @rule(what=st.sampled_from(["compiled", "programs", "bound", "results", "errors"]))
    def drop(self, what: str) -> None:
        del getattr(self, what)[-1:]

    @invariant()
    def the_programs_of_the_process_are_those_of_its_objects(self) -> None:
        gc.collect()
        listed, owned = set(nimble_fx.programs()), set[nimble_fx.Program]()
        owned.update(*(each.programs for each in self.compiled))
        assert listed >= owned
        if not (self.results or self.is_kept_by_pytorch):  # a result may need its backward
            assert listed == owned

    def watch(self, things: Sequence[object]) -> None:
        """Notes what must not live when all is dropped."""
        constants = [t for program in nimble_fx.programs() for t in program.constants.values()]
        self.witnesses += map(weakref.ref, [*things, *nimble_fx.programs(), *constants])

    def teardown(self) -> None:
        self.watch([])
        for held in (self.compiled, self.results, self.programs, self.bound, self.errors):
            held.clear()
        self.directory.cleanup()
        if self.is_kept_by_pytorch:
            self.reset()
        assert list(alive() - self.earlier) == []
        assert texts() <= self.texts_before  # those of earlier tests may go
        assert open_files() <= self.files_before
        assert [each() for each in self.witnesses if each() is not None] == []
        assert nimble_fx.programs() == ()
        assert not any(each.programs for each in self.compiled)
        assert nimble_fx.fallbacks() == ()


def test_nothing_is_left_of_what_was_compiled() -> None:
    budget = settings(max_examples=3, stateful_step_count=8, phases=[Phase.generate])
    with many_programs():
        run_state_machine_as_test(Lifetime, settings=budget)


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_is_left_of_what_was_called_saved_loaded_and_bound(options: dict[str, Any]) -> None:
    life: Any = Lifetime()
    for training in (False, True):
        life.compile(options=options, training=training, rows=2)
        life.call(rows=2, keep=training)
        life.the_programs_of_the_process_are_those_of_its_objects()
    life.drop("compiled")
    life.save()
    life.load()
    life.bind()
    life.call_bound(rows=2)
    assert life.bound
    assert len(life.results) > 1
    life.teardown()
