"""A simulated asynchronous GPU on the CPU, whose runs differ if a schedule is not race-free.

Operators inside `with stream:` do not run: they are queued on the stream, and their results are
memory that is not written yet, as on a GPU. Whenever the host synchronizes (after a program or a
replay) the queues run in one of the orders that streams and events allow, picked by a seed. To the
caller it is the CPU: operators and replays outside of `with stream:` run at once. Inside, a replay
is one more kernel of the stream.

Memory that a program frees is overwritten as soon as it could be reused: on the caller's stream at
once, where other threads may allocate; on a side stream before its next kernel.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from random import Random
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from nimble_fx.devices import Capture, Stream
from nimble_fx.devices.lock import Lock
from nimble_fx.devices.specs import DEFAULT_GPU, DEVICES
from nimble_fx.devices.virtual.launch import Draw, LaunchMode
from nimble_fx.devices.virtual.memory import Pool, poison
from nimble_fx.devices.virtual.queues import ORDERS, Choose, Mark, Queues
from nimble_fx.devices.virtual.state import ThreadState, VirtualCapture
from nimble_fx.errors import UnsupportedError

_LOCK = Lock()
"""One for all virtual devices, because they share the CPU's random generator."""


class VirtualEvent:
    """An event: the point of a queue at which it was last recorded."""

    mark: Mark | None = None
    capture: VirtualCapture | None = None

    def record(self, stream: "VirtualStream") -> None:
        """Marks the current end of the stream's queue."""
        stream.device.record(self, stream)


class VirtualStream:
    """A queue of kernels. Operators inside `with stream:` are added to it."""

    def __init__(self, device: "Virtual", index: int) -> None:
        self.device, self.index = device, index

    def __enter__(self) -> "VirtualStream":
        self.device.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.device.leave()

    def wait_event(self, event: VirtualEvent) -> None:
        """Makes later kernels of this stream happen after the event."""
        self.device.wait(event, self)


class Virtual:
    """The virtual device as a `DeviceRuntime`.

    Operators that need the values of a tensor on the host (`nonzero`, `item`) wait until all queues
    have run; within a capture they are errors, as are a stream that is used before it waits for
    an event of the capture, and one that is not joined at its end.
    """

    hardware = "virtual"
    stream_limit = None
    has_graphs = True
    can_time = False
    specs = DEVICES[DEFAULT_GPU]
    why_not_capture = None

    def __init__(self, seed: int = 0) -> None:
        """A new device.

        Args:
            seed: picks the orders; the same calls get the same orders.
        """
        self.name = f"virtual (seed {seed})"
        self._random = Random(seed)
        self._live: set[int] = set()
        self._streams = [VirtualStream(self, 0)]
        self._queues = Queues()
        self._host, self._launching = ThreadState(self.pool()), LaunchMode(self)
        self._capture: VirtualCapture | None = None

    @property
    def is_capturing(self) -> bool:
        """Whether the caller's current stream is being captured."""
        return self._capture is not None and self._host.current in self._capture.members

    def exclusive(self) -> Lock:
        """The reentrant lock of all virtual devices."""
        return _LOCK

    def streams(self, n: int) -> tuple[Stream, ...]:
        """The caller's current stream and `n - 1` others."""
        caller = self._host.current
        return (self._stream(caller), *self._others(n - 1, caller))

    def events(self, names: tuple[str, ...]) -> Any:
        """New events."""
        return SimpleNamespace(**{name: VirtualEvent() for name in names})

    def settle(self, streams: Sequence[Stream], outputs: Sequence[Any]) -> None:
        """Runs all queues to their ends, unless the caller is capturing."""
        if not self.is_capturing:
            self.synchronize()

    def free_garbage(self) -> None:
        """Does nothing: memory is not scarce."""

    def synchronize(self) -> None:
        """Runs all queues to their ends.

        Raises:
            RuntimeError: within a capture.
            Exception: an error of a kernel; the kernels after it are dropped.
        """
        self._refuse_in_capture()
        queues = self._queues.take()  # so that frees during the run queue nothing on them
        if not queues:
            return
        scratch = self._host.scratch
        with self._host.outside(self.pool()):  # a kernel may itself run a program
            try:
                queues.run(self._order())
            finally:
                scratch.poison_free()

    def pool(self) -> Pool:
        """A memory pool for captures. The device does not keep it alive."""
        return Pool(self._live, weakref.WeakMethod(self._overwrite))

    def limited_workspaces(self, nbytes: int | None) -> AbstractContextManager[None]:
        """Does nothing: libraries keep no workspaces here."""
        return nullcontext()

    def warm_up(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], object],
        pool: Pool,
        *,
        urgent: int | None = None,
    ) -> None:
        """Runs a program on the capture streams; restores the random generator."""
        state = torch.get_rng_state()
        try:
            with self._host.using(pool):
                run(self._others(n, self._host.current))
            self.synchronize()
        finally:
            self._queues.clear()
            torch.set_rng_state(state)

    def capture(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], Sequence[Any]],
        pool: Pool,
        *,
        urgent: int | None = None,
    ) -> Capture:
        """Captures a program; no kernel runs before the first replay.

        `urgent` is ignored: priorities guarantee nothing, so a schedule must be legal in any order.

        Raises:
            RuntimeError: another capture is under way, or a stream is not joined.
        """
        streams = self._others(n, self._host.current) or self._others(1, self._host.current)
        self.begin_capture(streams[0], pool)
        try:
            with streams[0]:
                outputs = run(streams[:n])
        finally:
            recorded = self.end_capture()
        recorded.check()
        nbytes = tuple(pool.nbytes(stream.index) for stream in streams[:n])
        return Capture(partial(self.replay, recorded), outputs, pool, nbytes)

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        """Always raises UnsupportedError."""
        raise UnsupportedError("the virtual device simulates orders, not time")

    def begin_capture(self, stream: VirtualStream, pool: Pool) -> None:
        """Starts to capture the kernels of a stream and of those that fork from it.

        Raises:
            RuntimeError: another capture is under way.
        """
        if self._capture is not None:
            raise RuntimeError("a capture is under way; captures do not nest")
        self._capture = VirtualCapture(stream.index, pool)

    def end_capture(self) -> VirtualCapture:
        """Ends the capture and returns it unchecked; restores the random generator."""
        recorded = self._capture
        if recorded is None:
            raise RuntimeError("no capture is under way")
        self._capture = None
        torch.set_rng_state(recorded.generator)
        return recorded

    def replay(self, recorded: VirtualCapture) -> None:
        """Runs a capture, in another order each time, after the kernels of the current stream.

        Outside of `with stream:` it runs after all queues: inputs may be on any stream.
        """
        with _LOCK, torch.no_grad():
            kernel = recorded.launch(self._order())
            if self._host.is_inside:
                self.launch(kernel)
            else:
                self.synchronize()
                kernel()

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Always raises UnsupportedError."""
        raise UnsupportedError("the virtual device simulates orders, not time")

    def enter(self, stream: VirtualStream) -> None:
        """Makes a stream the current one of the calling thread."""
        if not self._host.is_inside:
            self._launching.__enter__()  # type: ignore[no-untyped-call]
        self._host.enter(stream.index)

    def leave(self) -> None:
        """Returns to the stream that was current before the last `enter`."""
        self._host.leave()
        if not self._host.is_inside:
            self._launching.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def record(self, event: VirtualEvent, stream: VirtualStream) -> None:
        """Marks the current end of a stream's queue."""
        event.capture = self._capture_of(stream.index)
        event.mark = self._queues_of(stream.index).mark(stream.index)

    def wait(self, event: VirtualEvent, stream: VirtualStream) -> None:
        """Adds a wait; for an event that was never recorded it does nothing.

        Raises:
            RuntimeError: the event is of a capture and the stream is not, or the reverse.
        """
        if event.mark is None:
            return
        capture = self._capture
        if capture is not None and event.capture is capture:
            capture.members.add(stream.index)
        elif event.capture is not None or self._capture_of(stream.index) is not None:
            raise RuntimeError(
                f"stream {stream.index} waits for an event on the other side of a capture"
            )
        self._queues_of(stream.index).wait(stream.index, event.mark)

    def launch(self, kernel: Callable[[], None]) -> None:
        """Adds a kernel to the current stream."""
        self._queues_of(self._host.current).launch(self._host.current, kernel)

    def draw(self, draw: Draw) -> None:
        """Registers a kernel that draws random numbers: each replay draws new ones."""
        draw.reserve()
        if self._capture is not None:
            self._capture.draws.append(draw)

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Allocates memory on the current stream."""
        capture = self._capture_of(self._host.current)
        if capture is None:
            return self._host.pool.allocate(self._host.current, nbytes)
        storage = capture.pool.allocate(self._host.current, nbytes)
        capture.blocks.append(capture.pool.block_of(storage))
        return storage

    def keeps_alive(self, tensor: torch.Tensor) -> bool:
        """Whether a queued kernel keeps a tensor's memory alive.

        A capture keeps nothing alive: it has only addresses. A launch keeps memory alive that this
        device did not allocate, because stream order does not say when that may be reused.
        """
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return True
        is_captured = self._capture_of(self._host.current) is not None
        return not is_captured and storage.data_ptr() not in self._live

    def _overwrite(self, stream: int, block: torch.Tensor) -> None:
        """Queues a kernel that overwrites a freed block, as its next user would, in a program."""
        if not self._host.is_inside:
            return
        capture = self._capture_of(stream)
        queues, caller = (self._queues, 0) if capture is None else (capture.queues, capture.origin)
        launch = queues.launch if stream == caller else queues.launch_before_next
        launch(stream, partial(poison, block))

    def _order(self) -> Choose:
        return self._random.choice(ORDERS)(self._random)

    def _refuse_in_capture(self) -> None:
        if self._capture is not None:
            self._capture.is_broken = True
            raise RuntimeError("operation not permitted when stream is capturing")

    def _capture_of(self, stream: int) -> VirtualCapture | None:
        """The capture that a stream takes part in."""
        capture = self._capture
        return capture if capture is not None and stream in capture.members else None

    def _queues_of(self, stream: int) -> Queues:
        """The queues that a stream's steps are added to.

        Raises:
            RuntimeError: a capture is under way and the stream is not part of it.
        """
        if self._capture is None:
            return self._queues
        if stream not in self._capture.members:
            raise RuntimeError(
                f"stream {stream} is used in a capture before it waits for an event of it"
            )
        return self._capture.queues

    def _stream(self, index: int) -> VirtualStream:
        while index >= len(self._streams):
            self._streams.append(VirtualStream(self, len(self._streams)))
        return self._streams[index]

    def _others(self, n: int, caller: int) -> tuple[VirtualStream, ...]:
        """The first `n` side streams other than the caller's."""
        if n <= 0:
            return ()
        return tuple(self._stream(i) for i in range(1, n + 2) if i != caller)[:n]
