"""Programs that can be rebuilt, and devices on which one launch fails."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.devices.virtual.memory import Pool
from nimble_fx.devices.virtual.queues import Kernel
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.launch import Launcher
from nimble_fx.torch_internals.dynamo.boxed import boxed


class Faulty:
    """A device that fails at a launch of one's choice.

    Attributes:
        fails_at: which launch of the life that began with `begin`; None for none.
        phases: for each launch so far, whether a graph was being captured.
        pools_at_fault: the pools made for the capture that failed.
    """

    def __init__(self, device: Virtual, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.programs = device, list[Program]()
        self.error: type[BaseException] = RuntimeError
        self.begin(None)
        self._is_recording = False
        self._pools: list[weakref.ref[Pool]] = []
        self._launch, self._pool = device.launch, device.pool
        monkeypatch.setattr(device, "launch", self.launch)
        monkeypatch.setattr(device, "pool", self.pool)
        monkeypatch.setattr("nimble_fx.runtime.capture.freeze.CapturedGraph", self.captured)
        monkeypatch.setattr("nimble_fx.program.FrozenProgram", self.program)

    def begin(self, fails_at: int | None) -> None:
        """A new life: nothing is captured, nothing was launched."""
        self.fails_at, self.phases = fails_at, list[bool]()
        self.fails_from: int | None = None
        self.pools_at_fault: list[weakref.ref[Pool]] = []
        if self.programs:
            pool_group = PoolGroup(self.programs[0].launcher.device)
            for program in self.programs:
                program.make(pool_group)

    def launch(self, kernel: Kernel) -> None:
        self.phases.append(self._is_recording)
        n = len(self.phases) - 1
        if n == self.fails_at or (self.fails_from is not None and n >= self.fails_from):
            self.pools_at_fault = self._pools if self._is_recording else []
            raise self.error("out of memory")
        self._launch(kernel)

    def pool(self) -> Pool:
        pool = self._pool()
        self._pools.append(weakref.ref(pool))
        return pool

    def captured(self, *args: Any) -> CapturedGraph:
        with self._noting_a_recording():
            return CapturedGraph(*args)

    @property
    def n_mutated(self) -> int:
        """How many buffers the programs write."""
        return sum(len(program.launcher.mutated_static) for program in self.programs)

    def program(self, *args: Any) -> "Program":
        self.programs.append(Program(*args))
        return self.programs[-1]

    def left_over(self) -> tuple[Any, ...]:
        """What a failure must leave as it was, besides results and the model's state."""
        device = self.device
        stream: Any = device.streams(1)[0]
        return gc.isenabled(), device.is_capturing, stream.index

    @contextmanager
    def _noting_a_recording(self) -> Iterator[None]:
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False
            self._pools = []


@boxed
class Program:
    """A frozen program that can be made anew without compiling the model again."""

    def __init__(self, *args: Any) -> None:
        self.launcher: Launcher = args[0]
        _, pool_group, _, *self._others = args
        self.make(pool_group)

    def make(self, pool_group: PoolGroup) -> None:
        self._status = CaptureStatus()
        self._frozen = FrozenProgram(self.launcher, pool_group, self._status, *self._others)

    @property
    def is_frozen(self) -> bool:
        """Whether the last call was not the one that its capture failed for, nor came after it."""
        return self._status.frozen and self._status.reason is None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._frozen(args)


def step(model: nn.Module, run: Any, inputs: Sequence[Any], train: bool) -> list[Any]:
    """A call, with its backward pass if it is training: outputs, gradients, random state."""
    torch.manual_seed(1)
    model.zero_grad()
    with torch.set_grad_enabled(train):
        outputs = run(*inputs)
    if train:
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
        torch.stack([leaf.square().sum() for leaf in leaves]).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    return [outputs, gradients, torch.get_rng_state()]
