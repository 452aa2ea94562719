"""One capture of a program: how it is made, fed, replayed and read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nimble_fx.copies import GroupedCopy
from nimble_fx.devices import Stream
from nimble_fx.errors import StateError
from nimble_fx.launch import Launcher
from nimble_fx.outputs import Outputs

WARM_UPS = 3
"""Runs before a capture, so that libraries load, tune and allocate outside of it."""


class Recording:
    """A capture for one set of sizes and of parameters' addresses.

    It owns the memory that inputs are copied to, and holds on to the parameters.
    """

    def __init__(
        self, launcher: Launcher, given: list[Any], static: list[Tensor], copied: bool
    ) -> None:
        """Warms up and captures. Parameters, buffers and random numbers are left as they were.

        Args:
            launcher: the program.
            given: the inputs of a call, tensors and numbers; the numbers are part of the capture.
            static: the parameters; their addresses are part of the capture.
            copied: whether callers get copies of the outputs.

        Raises:
            Exception: whatever the program raised, or the device.
        """
        self._device, n = launcher.device, launcher.loaded.n_streams
        self._static = static  # their addresses are in the capture
        self._done = self._device.events(("replay",)).replay
        self._buffers = [_buffer_like(value) for value in given]
        tensors = [k for k, value in enumerate(given) if isinstance(value, Tensor)]
        self._expanded = [k for k in tensors if 0 in given[k].stride()]
        self._targets = self._without_repeats(self._buffers)
        self._copy_in = GroupedCopy([given[k] for k in tensors], tensors)
        mutated = [k for k in launcher.mutated_given if k in tensors]
        self._copy_back = GroupedCopy([given[k] for k in mutated], mutated)

        def run(streams: tuple[Stream, ...]) -> Sequence[Any]:
            return launcher.enqueue(list(self._buffers), static, streams)

        pool = self._device.pool()
        with _undone([static[k] for k in launcher.mutated_static]):
            for i in range(WARM_UPS):
                self._feed(given)
                self._device.warm_up(n, run, pool, may_synchronize=i < WARM_UPS - 1)
        self._capture = self._device.capture(n, run, pool)
        self._outputs = Outputs(self._capture.outputs, self._buffers, static, copied)

    @property
    def nbytes(self) -> tuple[int, ...]:
        """The bytes of memory of each stream that the capture owns."""
        return self._capture.nbytes

    def replay(self, given: list[Any]) -> list[Any]:
        """Runs the capture on new inputs, on the current stream; its outputs."""
        (caller,) = self._device.streams(1)
        caller.wait_event(self._done)  # the last replay may have been on another stream
        self._feed(given)
        self._capture.replay()
        self._copy_back(given, self._buffers)
        outputs = self._outputs.hand_out(given)
        self._done.record(caller)
        return outputs

    def _feed(self, given: list[Any]) -> None:
        self._copy_in(self._targets, self._without_repeats(given) if self._expanded else given)

    def _without_repeats(self, given: list[Any]) -> list[Any]:
        """The inputs, each element of an expanded tensor once."""
        values = list(given)
        for k in self._expanded:
            value = given[k]
            sizes = zip(value.shape, value.stride(), strict=True)
            once = [n if step else min(n, 1) for n, step in sizes]
            values[k] = value.as_strided(once, value.stride())
        return values


@contextmanager
def _undone(tensors: list[Tensor]) -> Iterator[None]:
    """Gives tensors back the values that they had before the block, however it ends.

    Raises:
        StateError: that failed. To go on would be to compute on other values than the user's.
    """
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        try:
            for tensor, before in zip(tensors, saved, strict=True):
                tensor.copy_(before)
        except Exception as error:
            raise StateError(
                f"buffers could not be given back the values they had before a warm-up: {error}. "
                "Load the model's state again"
            ) from error


def _buffer_like(value: Any) -> Any:
    """Memory for an input; a number is its own."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
