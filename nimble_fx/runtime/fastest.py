"""Selects the fastest of several programs that compute the same, by timing a first call."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch

from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import StateError
from nimble_fx.ir.effects import Effects
from nimble_fx.runtime.samples import Samples, are_disturbed, select_winner
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.forward_ad import carry_tangents
from nimble_fx.torch_internals.names import disable_modes
from nimble_fx.torch_internals.storages import memory_like

_log = logging.getLogger(__name__)

MIN_ROUNDS, MAX_ROUNDS = 5, 25
"""Rounds, each with a call to every program, so that noise affects all programs alike."""

CLEAR_ROUNDS, CLEAR_GAIN = 2, 0.1
"""So many rounds, if they are slow, are enough for a program that each time was faster by this than
any other; `MIN_ROUNDS` are in any case."""

ENOUGH_S = 1.0
"""After so many seconds there are no more rounds than necessary."""

PATIENCE_S = 5.0
"""If other work disturbs the times, rounds go on for up to so many seconds."""


@dataclass
class KernelChoice:
    """What the first call to a program measured.

    Attributes:
        times_ms: the median time of a call in milliseconds, by kind of kernels.
        left_out: why a kind of kernels was not measured to the end.
        winner: the kind that runs from now on; None before the first call.
    """

    times_ms: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    winner: str | None = None

    def __str__(self) -> str:
        """The times, the winner's first; empty if there was only one kind."""
        if self.winner is None:
            return "selected by the first call"
        if not (self.times_ms or self.left_out):
            return ""
        in_order = sorted(self.times_ms.items(), key=lambda item: (item[0] != self.winner, item[1]))
        rows = [f"{kind} ({_duration(ms)} a call)" for kind, ms in in_order] or [self.winner]
        return "; ".join([*rows, *(f"not {kind}: {why}" for kind, why in self.left_out.items())])


def _duration(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 0.9995 else f"{1000 * ms:.3g} us"


def fastest(
    name: str,
    runs: Mapping[str, Boxed],
    effects: Effects,
    device: DeviceRuntime,
    choice: KernelChoice,
    warn: Callable[[str], None],
) -> Boxed:
    """The callable that runs the fastest of several programs; the others are freed.

    The first is the winner unless another is faster by a margin in most rounds (`select_winner`).
    A program that raises an error is left out with a warning, unless it is the first.

    Args:
        name: the program's name, for the log.
        runs: equivalent programs, by kind of kernels.
        effects: the effects of each program. Measuring writes to copies of the arguments, and
            restores PyTorch's random number generators.
        device: the device that runs them.
        choice: receives the result.
        warn: warns the user.

    Cost: in the first call, `CLEAR_ROUNDS` to `MAX_ROUNDS` + 1 calls to each program, the memory of
    all of them, and a copy of the arguments that are written.
    """
    selection = _Selection(name, runs, effects, device, choice, warn)

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:  # AOTAutograd would copy an object's attributes
        return selection.run(args)

    call.winner = lambda: selection.winner  # type: ignore[attr-defined]  # see `winner_of`
    return call


def winner_of(run: Boxed) -> Boxed | None:
    """What a callable runs from now on: itself, or the fastest of several once that is measured."""
    find: Callable[[], Boxed | None] = getattr(run, "winner", lambda: run)
    return find()


def why_not(run: Boxed, args: Sequence[Any]) -> str | None:
    """Why a program would not run as it was compiled to, for these arguments; None if it would."""
    find: Callable[[Sequence[Any]], str | None] = getattr(run, "why_not", lambda args: None)
    return find(args)


class _Selection:
    """A callable that measures in its first call."""

    def __init__(
        self,
        name: str,
        runs: Mapping[str, Boxed],
        effects: Effects,
        device: DeviceRuntime,
        choice: KernelChoice,
        warn: Callable[[str], None],
    ) -> None:
        self._name = name
        self._runs = dict(runs)  # empty once the winner is known
        self._run = next(iter(runs.values()))
        self._effects, self._device, self._choice, self._warn = effects, device, choice, warn
        self._lock = threading.Lock()

    @property
    def winner(self) -> Boxed | None:
        """The fastest program; None if it is not measured yet."""
        return None if self._runs else self._run

    def run(self, args: list[Any]) -> Sequence[Any]:
        """Runs the winner; the call that measures it included."""
        # do not wait for the lock: its holder waits for the device, which this thread may hold
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
        """Selects the winner by timing calls with these arguments, without changing them."""
        if not self._runs:  # another thread was first
            return
        for name, run in list(self._runs.items())[1:]:
            reason = why_not(run, args)
            if reason is not None:
                del self._runs[name]
                self._leave_out(name, reason)
        drawn_on = self._effects.drawn_on
        gpus = [device for device in drawn_on if device.type != "cpu"]
        with (
            disable_modes(),  # AOTAutograd has one in a first call, which slows operators
            torch.random.fork_rng(devices=gpus) if drawn_on else nullcontext(),
        ):
            samples = self._timed(_Arguments(args, self._effects.written))
        names = list(self._runs)
        for i, each in samples.items():
            self._choice.times_ms[names[i]] = 1000 * median(each)
        self._choice.winner = names[select_winner(samples, 0)]
        self._run = self._runs[self._choice.winner]
        self._runs = {}
        _log.info("%s: kernels: %s", self._name, self._choice)

    def _timed(self, args: "_Arguments") -> Samples:
        """The seconds of each call, without a first round, which captures and packs weights."""
        samples: Samples = {i: [] for i in range(len(self._runs))}
        self._add_round(samples, args)
        for each in samples.values():
            each.clear()
        begin = perf_counter()
        while not _are_enough(samples, perf_counter() - begin):
            self._add_round(samples, args)
        return samples

    def _add_round(self, samples: Samples, args: "_Arguments") -> None:
        """Times a call of each program; removes those that fail, unless it is the first."""
        for i, (name, run) in enumerate(self._runs.items()):
            if i not in samples:
                continue
            try:
                samples[i].append(self._seconds(run, args.fresh()))
            except StateError:
                raise
            except Exception as error:
                if i == 0:
                    raise
                del samples[i]
                self._leave_out(name, f"{type(error).__name__}: {error}")

    def _leave_out(self, name: str, reason: str) -> None:
        self._choice.left_out[name] = reason
        self._warn(f"the fastest kernels are selected without {name}: {reason}")

    def _seconds(self, run: Boxed, args: list[Any]) -> float:
        """The seconds from a call until the device has finished it."""
        self._device.synchronize()
        begin = perf_counter()
        run(args)
        self._device.synchronize()
        return perf_counter() - begin


class _Arguments:
    """Arguments for repeated equal calls, which do not change the caller's tensors."""

    def __init__(self, args: Sequence[Any], written: Iterable[int]) -> None:
        self._originals = args
        self._written = sorted(written)
        self._args = list(args)
        for i in self._written:  # other threads may use the originals
            self._args[i] = memory_like(args[i])  # `fresh` sets the values

    def fresh(self) -> list[Any]:
        """The arguments, at the same addresses each time; restores the copies of written ones.

        Otherwise a model that advances a position would run past the end of its buffers.
        """
        for i in self._written:
            self._args[i].copy_(self._originals[i])
        return list(self._args)


def _are_enough(samples: Samples, seconds: float) -> bool:
    """Whether samples, which took so many seconds, are enough to select the winner."""
    n = len(samples[0])
    if len(samples) == 1:
        return n > 0
    if n >= MAX_ROUNDS or (n >= MIN_ROUNDS and _are_clear(samples)):
        return True
    if seconds < (PATIENCE_S if are_disturbed(samples.values()) else ENOUGH_S):
        return False
    return n >= MIN_ROUNDS or (n >= CLEAR_ROUNDS and _are_clear(samples))


def _are_clear(samples: Samples) -> bool:
    """Whether the same program was faster by `CLEAR_GAIN` than any other in each round."""
    best, *others = sorted(samples.values(), key=median)
    return all(
        a <= (1 - CLEAR_GAIN) * b for other in others for a, b in zip(best, other, strict=True)
    )
