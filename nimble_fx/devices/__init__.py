"""Device runtimes: streams, events, capture and replay of each device behind one protocol."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from nimble_fx.devices.lock import Lock
from nimble_fx.devices.specs import Device
from nimble_fx.errors import UnsupportedError


class Event(Protocol):
    """A point in a stream that other streams can wait for."""

    def record(self, stream: Any) -> None:
        """Marks the current end of a stream's queue."""


class Stream(AbstractContextManager[Any], Protocol):
    """A queue of kernels that run in order. Operators inside `with stream:` are launched on it."""

    def wait_event(self, event: Any) -> None:
        """Makes later kernels of this stream happen after the event."""


@dataclass(frozen=True)
class Capture:
    """A captured program.

    Attributes:
        replay: runs it again, on the current stream, in the memory that it was captured with.
        outputs: its outputs; each replay overwrites them.
        pool: its memory pool, which is freed with the last capture in it.
        nbytes: the bytes that are now in the pool, for each stream of the capture.
    """

    replay: Callable[[], None]
    outputs: Sequence[Any]
    pool: Any  # after `replay`: a graph must be freed before its memory
    nbytes: tuple[int, ...]


class DeviceRuntime(Protocol):
    """The operations of one device that the runtime needs."""

    @property
    def name(self) -> str:
        """Its name: "cpu", "cuda:0"."""

    @property
    def hardware(self) -> str | None:
        """Its model: "cpu", "NVIDIA H200"; None if this machine has no such device."""

    @property
    def specs(self) -> Device:
        """Its specifications, or those of the device that it simulates, for cost models."""

    @property
    def stream_limit(self) -> int | None:
        """The number of distinct streams that it has; None for no limit."""

    @property
    def has_graphs(self) -> bool:
        """Whether devices of its kind can capture programs."""

    @property
    def why_not_capture(self) -> str | None:
        """The reason why this one cannot capture; None if it can."""

    @property
    def can_time(self) -> bool:
        """Whether the time of a replay on it depends on the schedule."""

    @property
    def is_capturing(self) -> bool:
        """Whether the caller is capturing a graph of its own."""

    def exclusive(self) -> Lock:
        """A lock to hold while tasks are enqueued: all threads share the side streams."""

    def streams(self, n: int) -> tuple[Stream, ...]:
        """The caller's current stream and `n - 1` long-lived side streams."""

    def events(self, names: tuple[str, ...]) -> Any:
        """A namespace of fresh events."""

    def settle(self, streams: Sequence[Stream], outputs: Sequence[Any]) -> None:
        """Makes the caller's stream and side streams wait for each other, after a program.

        Then later work on any of them may reuse memory that the program freed, and the caller may
        free the outputs, even if side streams allocated them.
        """

    def synchronize(self) -> None:
        """Waits until all that was enqueued on it is done."""

    def free_garbage(self) -> None:
        """Frees memory in reference cycles, before captures that may need it."""

    def pool(self) -> Any:
        """A new memory pool, for captures that never run at the same time."""

    def limited_workspaces(self, nbytes: int | None) -> AbstractContextManager[None]:
        """Within the block, limits the workspaces that libraries allocate for each captured stream.

        In bytes; None for no limit. It only affects speed and memory, and a device may ignore it.
        """

    def warm_up(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], object],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> None:
        """Runs a program on the streams and memory of `capture`; restores the random generators.

        Args:
            n: the number of streams.
            run: enqueues the program on the streams in its argument.
            pool: the memory pool to use.
            urgent: as for `capture`.
        """

    def capture(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], Sequence[Any]],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> Capture:
        """Captures a program, with its memory in a pool.

        Args:
            n: the number of streams.
            run: enqueues the program on the streams in its argument.
            pool: the memory pool to use.
            urgent: the stream whose kernels start first if several are ready; None if all are
                equal. A hint, which a device may ignore.
        """

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        """Microseconds of a replay, the mean of `n` in a row; restores the random generators.

        Only for a device that can time.
        """

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """The seconds that a captured call takes: the median of a few samples.

        Args:
            calls: equivalent calls, made in turn, at least one; on different memory if the caches
                should be cold.

        Raises:
            UnsupportedError: the device has no graphs, or its time does not depend on the schedule.
            RuntimeError: the call fails, or waits for the device.
        """


def device_for(device: torch.device) -> DeviceRuntime | None:
    """The runtime of a device; None if its type is not supported."""
    from nimble_fx.devices.cpu import Cpu
    from nimble_fx.devices.cuda import Cuda

    if device.type == "cpu":
        return Cpu()
    if device.type == "cuda":
        return Cuda.get(device)
    return None


def device_named(name: str) -> DeviceRuntime | None:
    """The device with a `DeviceRuntime.name`; None if this machine has none."""
    from nimble_fx.devices.virtual.device import Virtual

    seed = re.fullmatch(r"virtual \(seed (-?[0-9]{1,20})\)", name)
    if seed is not None:
        return Virtual(int(seed[1]))
    try:
        device = device_for(torch.device(name))
    except RuntimeError:  # not a device name
        return None
    return device if device is not None and device.hardware is not None else None


def device_here(name: str) -> DeviceRuntime:
    """The device with a name, by `device_named`.

    Raises:
        UnsupportedError: this machine has no such device.
    """
    device = device_named(name)
    if device is None:
        raise UnsupportedError(
            f"this machine has no device {name}: save the program and load it on one that has"
        )
    return device
