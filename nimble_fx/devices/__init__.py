"""Where programs run: streams, events, capture and replay behind one small protocol."""

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
        """Marks what `stream` has been given so far."""


class Stream(AbstractContextManager[Any], Protocol):
    """A queue of kernels that run in order. Inside `with stream:` operators go there."""

    def wait_event(self, event: Any) -> None:
        """What comes next on this stream comes after what the event marks."""


@dataclass(frozen=True)
class Capture:
    """A captured program.

    Attributes:
        replay: runs it again, on the current stream, on the memory that it was captured with.
        outputs: what it returned; each replay overwrites them.
        pool: where its memory is from. Dropping all captures of a pool gives the memory back.
        nbytes: the memory that is now in the pool, in bytes for each stream it ran on.
    """

    replay: Callable[[], None]
    outputs: Sequence[Any]
    pool: Any  # behind `replay`: a graph must go before its memory
    nbytes: tuple[int, ...]


class DeviceRuntime(Protocol):
    """One device. `freeze` uses nothing else."""

    @property
    def name(self) -> str:
        """What a person calls it: "cpu", "cuda:0"."""

    @property
    def hardware(self) -> str | None:
        """What it is: "cpu", "NVIDIA H200"; None where this machine has no such device."""

    @property
    def specs(self) -> Device:
        """What a cost model knows of it, or of what it plays."""

    @property
    def max_streams(self) -> int | None:
        """How many distinct streams it has; None for no limit."""

    @property
    def has_graphs(self) -> bool:
        """Whether devices of its kind can capture programs."""

    @property
    def why_not_capture(self) -> str | None:
        """What keeps this one from capturing; None if nothing does."""

    @property
    def can_time(self) -> bool:
        """Whether a replay on it takes a time that tells one schedule from another."""

    @property
    def is_capturing(self) -> bool:
        """Whether the caller is capturing a graph of its own."""

    def exclusive(self) -> Lock:
        """Held while tasks are enqueued: side streams are shared by all threads."""

    def streams(self, n: int) -> tuple[Stream, ...]:
        """The caller's current stream and `n - 1` long-lived side streams."""

    def events(self, names: tuple[str, ...]) -> Any:
        """A namespace of fresh events."""

    def settle(self, streams: Sequence[Stream], outputs: Sequence[Any]) -> None:
        """Makes the caller's stream and side streams wait for each other, after a program.

        So whatever either is given next, by whomever, may use the memory that the program freed,
        and the caller may free the outputs, which side streams may have allocated.
        """

    def pool(self) -> Any:
        """A new pool of memory, for captures that never run at the same time."""

    def warm_up(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], object],
        pool: Any,
        *,
        may_synchronize: bool,
        urgent: int | None = None,
    ) -> None:
        """Runs a program on the streams and memory that `capture` uses; random draws are undone.

        Args:
            n: how many streams.
            run: enqueues the program on the streams that it is given.
            pool: whose memory it takes.
            may_synchronize: whether an operator may wait for the device.
            urgent: as for `capture`.

        Raises:
            RuntimeError: an operator waited for the device, and that was not allowed.
        """

    def capture(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], Sequence[Any]],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> Capture:
        """Captures what `run` enqueues on the streams that it is given, in a pool's memory.

        Args:
            n: how many streams.
            run: enqueues the program on the streams that it is given.
            pool: whose memory it takes.
            urgent: which of the streams goes before the others wherever the device has to choose;
                None if they are equal. It is a hint, which a device may ignore.
        """

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        """Microseconds of a replay, the mean of `n` in a row; random draws are undone.

        Only for a device that can time.
        """

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """What a captured call takes, in seconds: the median of a few samples.

        Args:
            calls: that do the same, on memory of their own if caches are to be cold; at least one.
                They are made in turn.

        Raises:
            UnsupportedError: the device has no graphs, or time means nothing on it.
            RuntimeError: the call fails, or waits for the device.
        """


def device_for(device: torch.device) -> DeviceRuntime | None:
    """The device's implementation; None if there is none for its type."""
    from nimble_fx.devices.cpu import Cpu
    from nimble_fx.devices.cuda import Cuda

    if device.type == "cpu":
        return Cpu()
    if device.type == "cuda":
        return Cuda.get(device)
    return None


def device_named(name: str) -> DeviceRuntime | None:
    """The device of a name, as `DeviceRuntime.name` gives it; None if this machine has none."""
    from nimble_fx.devices.virtual.device import Virtual

    seed = re.fullmatch(r"virtual \(seed (-?[0-9]{1,20})\)", name)
    if seed is not None:
        return Virtual(int(seed[1]))
    try:
        device = device_for(torch.device(name))
    except RuntimeError:  # no device of any machine
        return None
    return device if device is not None and device.hardware is not None else None


def device_here(name: str) -> DeviceRuntime:
    """The device of a name, as `device_named`.

    Raises:
        UnsupportedError: this machine has none.
    """
    device = device_named(name)
    if device is None:
        raise UnsupportedError(
            f"this machine has no device {name}: save the program and load it on one that has"
        )
    return device
