"""The fastest of several programs that compute the same, as its first call measures it."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import StateError
from nimble_fx.runtime.autotuning import Samples, select_winner
from nimble_fx.runtime.pool_group import Boxed
from nimble_fx.runtime.restored import restored
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.forward_ad import carry_tangents

MIN_ROUNDS, MAX_ROUNDS = 5, 25
"""Samples of each program; rounds alternate between programs, so that noise affects all alike."""

ENOUGH_S = 1.0
"""After so many seconds of samples there are no more rounds than `MIN_ROUNDS`."""


@dataclass
class KernelChoice:
    """What the first call of a program measured.

    Attributes:
        times_ms: the median time of a call in milliseconds, by kind of kernels.
        winner: the kind that runs from now on; None before the first call.
    """

    times_ms: dict[str, float] = field(default_factory=dict)
    winner: str | None = None


def fastest(
    runs: Mapping[str, Boxed], written: Sequence[int], device: DeviceRuntime, choice: KernelChoice
) -> Boxed:
    """The callable that runs the fastest of several programs; the others are freed.

    The first is the winner unless another is faster by a margin in most rounds (`select_winner`).
    A program that raises an error is left out, unless it is the first.

    Args:
        runs: programs that take and return the same, by kind of kernels.
        written: the positions of arguments that they write to, which measuring restores.
        device: runs them.
        choice: where the result goes.

    Cost: in the first call, `MIN_ROUNDS` to `MAX_ROUNDS` + 1 calls of each, the memory of all of
    them, and a copy of the arguments that are written.
    """
    selection = _Selection(runs, written, device, choice)

    def call(args: list[Any]) -> Sequence[Any]:  # AOTAutograd would copy an object's attributes
        return selection.run(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
    return call


class _Selection:
    """Measures in its first call."""

    def __init__(
        self,
        runs: Mapping[str, Boxed],
        written: Sequence[int],
        device: DeviceRuntime,
        choice: KernelChoice,
    ) -> None:
        self._runs = dict(runs)  # empty once the winner is known
        self._run = next(iter(runs.values()))
        self._written, self._device, self._choice = written, device, choice
        self._lock = threading.Lock()

    def run(self, args: list[Any]) -> Sequence[Any]:
        """Runs the winner; the call that measures it included."""
        # the lock is not waited for: who measures waits for the device, which this thread may hold
        if self._runs and self._can_measure(args) and self._lock.acquire(blocking=False):
            try:
                self._select(args)
            finally:
                self._lock.release()
        return self._run(args)

    def _can_measure(self, args: list[Any]) -> bool:
        is_busy = self._device.is_capturing or self._device.exclusive().is_held_here
        return not (is_busy or are_fake(args) or carry_tangents(args))

    def _select(self, args: list[Any]) -> None:
        """Selects the winner by calls with these arguments, which are left as they were."""
        if not self._runs:  # another thread was first
            return
        names = list(self._runs)
        gpus = list({x.device for x in args if isinstance(x, Tensor) and x.is_cuda})
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=gpus))
            stack.enter_context(restored([args[i] for i in self._written]))
            samples = self._timed(list(self._runs.values()), args)
        self._choice.times_ms.update({names[i]: 1000 * median(each) for i, each in samples.items()})
        self._choice.winner = names[select_winner(samples, 0)]
        self._run = self._runs[self._choice.winner]
        self._runs = {}

    def _timed(self, runs: Sequence[Boxed], args: list[Any]) -> Samples:
        """The seconds of calls; a first round, which captures and packs weights, is left out."""
        samples: Samples = {}
        for i, run in enumerate(runs):
            try:
                self._seconds(run, args)
            except StateError:
                raise
            except Exception:
                if i == 0:
                    raise
            else:
                samples[i] = []
        begin = perf_counter()
        while len(samples[0]) < MIN_ROUNDS or (
            len(samples[0]) < MAX_ROUNDS and perf_counter() - begin < ENOUGH_S
        ):
            for i in samples:
                samples[i].append(self._seconds(runs[i], args))
        return samples

    def _seconds(self, run: Boxed, args: list[Any]) -> float:
        """The seconds from a call until the device has done all of it."""
        self._device.synchronize()
        begin = perf_counter()
        run(list(args))
        self._device.synchronize()
        return perf_counter() - begin
