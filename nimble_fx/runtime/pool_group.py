"""What programs that never run at the same time share: memory, and whose turn it is."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from nimble_fx.devices import DeviceRuntime, Stream

Boxed = Callable[[list[Any]], Sequence[Any]]
"""AOTAutograd's convention: a call takes a list of inputs and empties it."""


class PoolGroup:
    """The common ground of a forward and its backward, or of an inference program alone.

    Their captures may share memory that each overwrites, so they run one at a time, each after the
    last, whatever streams they are called on.

    Attributes:
        saved: the addresses of what captures of the forward save for the backward, and the pool
            that each is in.
        programs: those that share it (`nimble_fx.runtime.graph_cache.GraphCache`).
    """

    def __init__(self, device: DeviceRuntime) -> None:
        self._lock = threading.RLock()
        self._is_busy = False
        self._last = device.events(("replay",)).replay
        self.saved: dict[int, weakref.ref[Any]] = {}
        self.programs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._device = device
        self._pool: weakref.ref[Any] | None = None

    def wait(self) -> Stream:
        """The current stream, which waits for whoever ran last."""
        (caller,) = self._device.streams(1)
        caller.wait_event(self._last)
        return caller

    def leave(self, caller: Stream | None = None) -> None:
        """Whoever runs next will wait for what the current stream was given."""
        self._last.record(caller or self._device.streams(1)[0])

    def unfrozen(self, run: Boxed) -> Boxed:
        """Runs a program that has no captures, in turn: it may read what a capture has saved."""

        def call(args: list[Any]) -> Sequence[Any]:
            has_turn = self.take()
            try:
                outputs = run(args)
                if not self._device.is_capturing:
                    self.leave()
            finally:
                if has_turn:
                    self.give()
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return call

    def take(self) -> bool:
        """Begins a turn; whether that was possible.

        An operator of a program may call a program. Who is in the middle of a turn, or launches
        kernels that others wait for, must not wait for a turn: that could be for ever.
        """
        if not self._lock.acquire(blocking=False):
            if self._device.exclusive().is_held_here:
                return False
            self._lock.acquire()
        if self._is_busy:
            self._lock.release()
            return False
        self._is_busy = True
        return True

    def give(self) -> None:
        """Ends a turn."""
        self._is_busy = False
        self._lock.release()

    def own_pool(self) -> Any:
        """Memory for a capture that leaves something there for later.

        None of the others may ever write to it: not those that are captured before, to which it
        would be free memory.
        """
        return self._device.pool()

    def pool_of(self, address: int) -> Any:
        """The memory of the capture that saved what is at an address.

        What it has saved is not free, so its backward may use the rest.
        """
        return self.saved[address]()

    def shared_pool(self) -> Any:
        """Memory for captures that leave nothing there. It goes when the last of them goes."""
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            pool = self._device.pool()
            self._pool = weakref.ref(pool)
        return pool
