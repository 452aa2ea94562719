"""The CPU: operators run at once, in launch order, so streams and events do nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import SimpleNamespace, TracebackType
from typing import Any

from nimble_fx.devices import Capture, Stream
from nimble_fx.devices.lock import Lock, NoLock
from nimble_fx.devices.specs import DEVICES
from nimble_fx.errors import UnsupportedError


class CpuEvent:
    """An event that has always happened."""

    def record(self, stream: "CpuStream") -> None:
        """Does nothing: all kernels of the stream have run."""


class CpuStream:
    """A stream whose queue is always empty."""

    def __enter__(self) -> "CpuStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def wait_event(self, event: CpuEvent) -> None:
        """Does nothing: the event has happened."""


_STREAM = CpuStream()
_EVENT = CpuEvent()
_NO_LOCK = NoLock()


class Cpu:
    """The CPU as a `DeviceRuntime`."""

    name = "cpu"
    hardware = "cpu"
    specs = DEVICES["cpu"]
    stream_limit = None
    has_graphs = False
    can_time = False
    why_not_capture = None
    is_capturing = False

    def exclusive(self) -> Lock:
        """A lock that never blocks: streams have no state."""
        return _NO_LOCK

    def streams(self, n: int) -> tuple[Stream, ...]:
        """`n` times the same stream."""
        return (_STREAM,) * n

    def events(self, names: tuple[str, ...]) -> Any:
        """The same event under each name."""
        return _events(names)

    def settle(self, streams: Sequence[Stream], outputs: Sequence[Any]) -> None:
        """Does nothing: all kernels of the streams have run."""

    def synchronize(self) -> None:
        """Does nothing: operators have run when they return."""

    def free_garbage(self) -> None:
        """Does nothing: there are no captures."""

    def pool(self) -> None:
        """None: there are no captures."""

    def limited_workspaces(self, nbytes: int | None) -> AbstractContextManager[None]:
        """Does nothing: libraries keep no workspaces here."""
        return nullcontext()

    def warm_up(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], object],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> None:
        """Runs the program once."""
        run(self.streams(n))

    def capture(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], Sequence[Any]],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> Capture:
        """Always raises UnsupportedError."""
        raise UnsupportedError("a CPU has no CUDA graphs")

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        """Always raises UnsupportedError."""
        raise UnsupportedError("a CPU has nothing to replay")

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Always raises UnsupportedError."""
        raise UnsupportedError("a CPU's operators are timed where their program calls them")


@lru_cache(maxsize=64)
def _events(names: tuple[str, ...]) -> SimpleNamespace:
    return SimpleNamespace(**dict.fromkeys(names, _EVENT))
