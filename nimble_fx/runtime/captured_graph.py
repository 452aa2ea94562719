"""One capture of a program: how it is made, fed, replayed and read."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nimble_fx.devices import Capture, Stream
from nimble_fx.errors import StateError
from nimble_fx.runtime.foreach_copy import GroupedCopy
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.outputs import Outputs
from nimble_fx.runtime.pool_group import PoolGroup
from nimble_fx.torch_internals.storages import key_of_storage, n_uses, storage_key

WARM_UPS = 3
"""Runs before a capture, so that libraries load, tune and allocate outside of it."""


@dataclass(frozen=True)
class OutputPolicy:
    """Which outputs are handed out where they are: their positions.

    Attributes:
        aliased: those that the next replay may overwrite whoever holds them.
        saved: those that a backward will read.
    """

    aliased: Sequence[int] = ()
    saved: Sequence[int] = ()


class CapturedGraph:
    """A capture for one set of sizes and of addresses.

    It owns the memory that inputs are copied to. Parameters, and what a forward has saved, are read
    where they are; their addresses are part of the capture, but it does not keep them alive.
    """

    def __init__(
        self,
        launcher: Launcher,
        pool_group: PoolGroup,
        given: list[Any],
        static: list[Tensor],
        fixed: Sequence[int],
        output_policy: OutputPolicy,
        pool: Any,
    ) -> None:
        """Warms up and captures. Parameters, buffers and random numbers are left as they were.

        Args:
            launcher: the program.
            pool_group: where it runs, and with whom.
            given: the inputs of a call, tensors and numbers; the numbers are part of the capture.
            static: the parameters.
            fixed: the positions in `given` of what is read where it is.
            output_policy: which outputs are handed out where they are.
            pool: where it takes memory.

        Raises:
            Exception: whatever the program raised, or the device.
        """
        self.n_replays = 0
        self._device, self._pool_group, self._fixed = launcher.device, pool_group, fixed
        self._buffers = [_buffer_like(value) for value in given]
        for k in fixed:
            self._buffers[k] = given[k]
        copied = [k for k, x in enumerate(given) if isinstance(x, Tensor) and k not in fixed]
        self._expanded = [k for k in copied if 0 in given[k].stride()]
        self._targets = self._without_repeats(self._buffers)
        self._copy_in = GroupedCopy(given, copied)
        self._copy_back = GroupedCopy(given, [k for k in launcher.mutated_given if k in copied])
        self._capture = self._captured(launcher, given, static, pool)
        for k in fixed:
            self._buffers[k] = self._targets[k] = None
        captured, read_in_place = self._capture.outputs, self._fixed_inputs(given, static)
        in_place = {*output_policy.aliased, *output_policy.saved}
        self._outputs = Outputs(captured, self._buffers, read_in_place, in_place)
        self._capture = replace(self._capture, outputs=())
        saved = [captured[i] for i in output_policy.saved if i in self._outputs.in_place]
        self.saved_addresses = {value.data_ptr() for value in saved}
        self._saved_storages = {storage_key(value) for value in saved}
        self._n_uses = self._count_uses()

    @property
    def pool(self) -> Any:
        """Where it has its memory."""
        return self._capture.pool

    @property
    def nbytes(self) -> tuple[int, ...]:
        """The bytes of memory of each stream that its pool has."""
        return self._capture.nbytes

    @property
    def is_in_use(self) -> bool:
        """Whether a backward is still to come that needs what was saved where it is."""
        return self._count_uses() != self._n_uses

    def replay(self, given: list[Any], static: list[Tensor]) -> list[Any]:
        """Runs the capture on new inputs, on the current stream; its outputs."""
        caller = self._pool_group.wait()
        self._feed(given)
        self._capture.replay()
        self._copy_back(given, self._buffers)
        self.n_replays += 1
        outputs = self._outputs.hand_out(given, self._fixed_inputs(given, static))
        self._pool_group.leave(caller)
        return outputs

    def time_us(self, given: list[Any], mutated: list[Tensor], n: int) -> float:
        """Microseconds of a replay, the mean of `n` in a row.

        Args:
            given: the inputs of a call, which stay as they are.
            mutated: the parameters and buffers that the program changes; they are put back.
            n: at least 1.
        """
        with _undone(mutated):
            self._pool_group.wait()
            self._feed(given)
            took = self._device.time_us(self._capture.replay, n)
            self._pool_group.leave()
        return took

    def when_memory_goes(
        self, given: list[Any], static: list[Tensor], gone: Callable[[Any], None]
    ) -> None:
        """Has `gone` called when memory that is read where it is does not live any longer."""
        storages = [x.untyped_storage() for x in self._fixed_inputs(given, static)]
        distinct = {key_of_storage(storage): storage for storage in storages}
        self._watched = [weakref.ref(storage, gone) for storage in distinct.values()]

    def _captured(
        self, launcher: Launcher, given: list[Any], static: list[Tensor], pool: Any
    ) -> Capture:
        n, urgent = launcher.loaded.n_streams, launcher.loaded.urgent

        def run(streams: tuple[Stream, ...]) -> Sequence[Any]:
            return launcher.enqueue(list(self._buffers), static, streams)

        self._pool_group.wait()
        mutated = [static[k] for k in launcher.mutated_static]
        for i in range(WARM_UPS):
            with _undone(mutated):  # each time: a counter that goes on would leave its table
                self._feed(given)
                may = i < WARM_UPS - 1
                self._device.warm_up(n, run, pool, may_synchronize=may, urgent=urgent)
        return self._device.capture(n, run, pool, urgent=urgent)

    def _fixed_inputs(self, given: list[Any], static: list[Tensor]) -> list[Tensor]:
        """What is read where it is."""
        return [*static, *[given[k] for k in self._fixed]] if self._fixed else static

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

    def _count_uses(self) -> int:
        """How many tensors there are in the memory that is saved where it is."""
        return n_uses(self._saved_storages)


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
