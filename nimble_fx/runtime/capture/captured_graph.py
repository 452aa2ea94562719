"""One captured graph of a program: warm-up, capture, replay, copies in and out."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from nimble_fx.devices import Capture, Stream
from nimble_fx.errors import StateError
from nimble_fx.ir.workspaces import workspace_limit
from nimble_fx.runtime.attention_seeds import with_seeds_on
from nimble_fx.runtime.capture.capture_options import OutputPolicy
from nimble_fx.runtime.capture.grouped_copies import grouped_copy
from nimble_fx.runtime.capture.outputs import OutputBuilder
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.launch import HOST, Launcher
from nimble_fx.torch_internals.dynamo.tensor_guards import TensorGuards
from nimble_fx.torch_internals.names import DisableTorchFunction
from nimble_fx.torch_internals.storages import memory_like, n_uses, storage_key

WARM_UPS = 3
"""Warm-up runs before a capture, so that libraries load, tune and allocate outside of it."""


class CapturedGraph:
    """A captured graph for one set of sizes and addresses.

    It owns the buffers that inputs are copied to. Parameters, and tensors that a forward saved, are
    read in place; their addresses are part of the capture, but it does not keep them alive.

    Attributes:
        n_replays: how often it was replayed.
        saved_addresses: the addresses of tensors that a forward saved in its memory.
        fits: takes parameters and buffers, as arguments; returns whether their types are the same.
    """

    def __init__(
        self,
        launcher: Launcher,
        pool_group: PoolGroup,
        inputs: Sequence[Any],
        static: Sequence[Tensor],
        fixed: Sequence[int],
        output_policy: OutputPolicy,
        pool: Any,
    ) -> None:
        """Warms up and captures. Restores parameters, buffers and random number generators.

        Args:
            launcher: the program.
            pool_group: orders its runs with those of its forward or backward.
            inputs: the inputs of a call, tensors and numbers; the numbers are part of the capture.
            static: the parameters and buffers.
            fixed: the positions of inputs that are read in place, at a fixed address.
            output_policy: which outputs alias the graph's memory.
            pool: the memory pool that it allocates from.

        Raises:
            Exception: any error of the program or the device.
        """
        self.n_replays = 0
        self._device, self._pool_group, self._fixed = launcher.device, pool_group, fixed
        inputs = with_seeds_on(launcher.graph.device, inputs, launcher.seeds)
        own = {k for k, x in enumerate(inputs) if isinstance(x, Tensor)}.difference(fixed)
        self._buffers = [memory_like(x) if k in own else x for k, x in enumerate(inputs)]
        copied = sorted(own)
        self._expanded = [k for k in copied if 0 in inputs[k].stride()]
        self._targets = self._unexpanded(self._buffers)
        self._copy_in = grouped_copy(inputs, copied)
        self._written = launcher.mutated_inputs
        self._copy_back = grouped_copy(inputs, self._written)
        self._capture = self._captured(launcher, inputs, static, pool)
        for k in fixed:
            self._buffers[k] = self._targets[k] = None
        captured, read_in_place = self._capture.outputs, self._in_place_inputs(inputs, static)
        in_place = {*output_policy.aliased, *output_policy.saved}
        self._output_builder = OutputBuilder(captured, self._buffers, read_in_place, in_place)
        self._capture = replace(self._capture, outputs=())
        self._replay = self._capture.replay
        saved = [captured[i] for i in output_policy.saved if i in self._output_builder.in_place]
        self.saved_addresses = {value.data_ptr() for value in saved}
        self._saved_storages = {storage_key(value) for value in saved}
        self._n_references = self._count_references()
        self.remember_types(static)

    def remember_types(self, static: Sequence[Tensor]) -> None:
        """Makes `fits` compare with the types of these parameters and buffers."""
        self.fits = TensorGuards(static).check

    @property
    def pool(self) -> Any:
        """The memory pool that it has allocated from."""
        return self._capture.pool

    @property
    def nbytes(self) -> tuple[int, ...]:
        """The memory of its pool in bytes, for each stream."""
        return self._capture.nbytes

    @property
    def awaits_backward(self) -> bool:
        """Whether tensors that the last replay saved in place are still referenced."""
        return self._count_references() != self._n_references

    def replay(self, inputs: Sequence[Any], static: Sequence[Tensor]) -> list[Any]:
        """Replays the graph on new inputs, on the current stream; returns the outputs."""
        caller = self._pool_group.wait_for_last()
        try:
            with DisableTorchFunction():  # modes and subclasses took effect when it was traced
                self._copy_in(self._targets, self._unexpanded(inputs) if self._expanded else inputs)
                self._replay()
                if self._written:
                    self._copy_back(inputs, self._buffers)
                self.n_replays += 1
                read_in_place = self._in_place_inputs(inputs, static) if self._fixed else static
                return self._output_builder.build(inputs, read_in_place)
        finally:  # not `turn`, which takes a microsecond longer
            self._pool_group.record_end(caller)

    def time_us(self, inputs: Sequence[Any], mutated: list[Tensor], n: int) -> float:
        """The mean time of `n` replays in a row, in microseconds.

        Args:
            inputs: the inputs of a call, which are not written to.
            mutated: the parameters and buffers that the program writes to; they are restored.
            n: at least 1.
        """
        with self._pool_group.turn(), _restored(mutated):
            self._copy_inputs(inputs)
            return self._device.time_us(self._capture.replay, n)

    def on_memory_freed(
        self, inputs: Sequence[Any], static: Sequence[Tensor], callback: Callable[[Any], None]
    ) -> None:
        """Registers a callback for when memory that the graph reads in place is freed."""
        in_place = self._in_place_inputs(inputs, static)
        self._weak_storages = [weakref.ref(x.untyped_storage(), callback) for x in in_place]

    def _captured(
        self, launcher: Launcher, inputs: Sequence[Any], static: Sequence[Tensor], pool: Any
    ) -> Capture:
        n, urgent = launcher.loaded.n_streams, launcher.loaded.urgent

        def enqueue(values: list[Any], streams: tuple[Stream, ...]) -> Sequence[Any]:
            return launcher.enqueue(list(values), static, streams)

        self._pool_group.wait_for_last()
        self._copy_inputs(inputs)
        launch = partial(enqueue, with_seeds_on(HOST, self._buffers, launcher.seeds))
        mutated = [static[k] for k in launcher.mutated_static]
        with self._device.limited_workspaces(workspace_limit(launcher.graph)):
            for _ in range(WARM_UPS):
                with _restored(mutated):  # each time: a counter could run past its table
                    self._copy_inputs(inputs)
                    self._device.warm_up(n, launch, pool, urgent=urgent)
            return self._device.capture(n, partial(enqueue, self._buffers), pool, urgent=urgent)

    def _in_place_inputs(self, inputs: Sequence[Any], static: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that the graph reads in place."""
        return [*static, *[inputs[k] for k in self._fixed]]

    def _copy_inputs(self, inputs: Sequence[Any]) -> None:
        self._copy_in(self._targets, self._unexpanded(inputs) if self._expanded else inputs)

    def _unexpanded(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, with stride-0 dimensions of expanded tensors cut to one element."""
        values = list(inputs)
        for k in self._expanded:
            value = inputs[k]
            dimensions = zip(value.shape, value.stride(), strict=True)
            shape = [n if stride else min(n, 1) for n, stride in dimensions]
            values[k] = value.as_strided(shape, value.stride())
        return values

    def _count_references(self) -> int:
        """The number of references to storages that are saved in place."""
        return n_uses(self._saved_storages)


@contextmanager
def _restored(tensors: list[Tensor]) -> Iterator[None]:
    """Restores the values of tensors after the block, however it ends.

    Raises:
        StateError: that failed; the model no longer has the state that the user gave it.
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
                f"buffers could not be restored to their values before a warm-up: {error}. "
                "Load the model's state again"
            ) from error
