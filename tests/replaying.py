"""A device that captures and replays on the CPU, to test freezing without a GPU.

A capture keeps the memory it was made with: a replay computes again from the same inputs and
writes its results where the capture's results were, as a CUDA graph does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.devices import Capture, Stream
from nimble_fx.devices.cpu import Cpu


class ReplayingDevice(Cpu):
    """A CPU that can capture; it counts what it is asked to do."""

    why_not_capture = None  # type: ignore[assignment]

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail
        self.n_warm_ups = self.n_captures = self.n_replays = 0

    def warm_up(self, n: int, run: Callable[[tuple[Stream, ...]], object]) -> None:
        self.n_warm_ups += 1
        state = torch.get_rng_state()
        try:
            run(self.streams(n))
        finally:
            torch.set_rng_state(state)

    def capture(self, n: int, run: Callable[[tuple[Stream, ...]], Sequence[Any]]) -> Capture:
        if self.fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.n_captures += 1
        with torch.no_grad():
            outputs = self._without_effect(n, run)

        def replay() -> None:
            self.n_replays += 1
            for fixed, new in zip(outputs, run(self.streams(n)), strict=True):
                if isinstance(fixed, torch.Tensor) and fixed.data_ptr() != new.data_ptr():
                    fixed.copy_(new)

        return Capture(replay, outputs)

    def _without_effect(
        self, n: int, run: Callable[[tuple[Stream, ...]], Sequence[Any]]
    ) -> Sequence[Any]:
        """A CUDA capture computes nothing: what this one wrote and drew is undone."""
        state = torch.get_rng_state()
        with _Writes() as writes:
            outputs = run(self.streams(n))
        for tensor, before in reversed(writes.undo):
            tensor.copy_(before)
        torch.set_rng_state(state)
        return outputs


class _Writes(TorchDispatchMode):
    """Keeps what each in-place operator overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.undo: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for parameter, value in zip(func._schema.arguments, args, strict=False):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                self.undo.append((value, value.clone()))
        return func(*args, **(kwargs or {}))
