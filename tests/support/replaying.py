"""A virtual device that counts its calls, and can fail."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.devices import Capture, Stream
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.devices.virtual.memory import Pool
from nimble_fx.fallback import Reporter
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.launch import Launcher
from tests.support.schedules import scheduled, traced


class ReplayingDevice(Virtual):
    """It counts warm-ups, captures and replays.

    Attributes:
        fail: whether captures fail.
    """

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.fail = fail
        self.n_warm_ups = self.n_captures = self.n_replays = 0

    def warm_up(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], object],
        pool: Pool,
        *,
        urgent: int | None = None,
    ) -> None:
        self.n_warm_ups += 1
        super().warm_up(n, run, pool, urgent=urgent)

    def capture(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], Sequence[Any]],
        pool: Pool,
        *,
        urgent: int | None = None,
    ) -> Capture:
        if self.fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.n_captures += 1
        captured = super().capture(n, run, pool, urgent=urgent)
        uncounted = captured.replay

        def replay() -> None:  # does not keep the outputs alive
            self.n_replays += 1
            uncounted()

        return replace(captured, replay=replay)


def frozen(
    function: Callable[..., Any],
    *inputs: Tensor,
    device: ReplayingDevice,
    are_static: bool = False,
    options: CaptureOptions | None = None,
) -> FrozenProgram:
    """A function frozen on a device; its inputs may be parameters."""
    result = traced(function, *copy.deepcopy(inputs), functional=False)
    values = tuple(replace(value, static=are_static) for value in result.graph.inputs)
    graph = scheduled(replace(result.graph, inputs=values))
    loaded = load(emit(graph), "frozen.py")
    launcher = Launcher(graph, loaded, result.constants, device)
    return FrozenProgram(
        launcher, PoolGroup(device), CaptureStatus(), Reporter(), options or CaptureOptions()
    )
