"""Memory pools and ordering of programs that never run at the same time."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from nimble_fx.devices import DeviceRuntime, Stream
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed


class PoolGroup:
    """Memory pools of a forward and its backward together, or of one inference program.

    Their captures may overwrite each other's memory, so they run one at a time, each after the one
    before, whatever streams they are called on.

    Attributes:
        saved_pools: the pool of each tensor that a capture of the forward saves for the backward,
            by the tensor's address.
        graph_caches: the caches (`graph_cache.GraphCache`) of the programs in the group.
    """

    def __init__(self, device: DeviceRuntime) -> None:
        self._lock = threading.RLock()
        self._is_busy = False
        self._last_event = device.events(("replay",)).replay
        self.saved_pools: dict[int, weakref.ref[Any]] = {}
        self.graph_caches: weakref.WeakSet[Any] = weakref.WeakSet()
        self._device = device
        self._pool: weakref.ref[Any] | None = None

    def wait_for_last(self) -> Stream:
        """Makes the current stream wait for the run before, and returns the stream."""
        (caller,) = self._device.streams(1)
        caller.wait_event(self._last_event)
        return caller

    def record_end(self, caller: Stream) -> None:
        """Records the end of a run on the current stream; the next run waits for it."""
        self._last_event.record(caller)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Orders what the block launches after the run before, and the next run after it."""
        caller = self.wait_for_last()
        try:
            yield
        finally:
            self.record_end(caller)

    def ordered(self, run: Boxed) -> Boxed:
        """Wraps a program without captures so that it runs in turn with the others.

        It may read what a capture has saved, if the device has any captures.
        """
        if not self._device.has_graphs:
            return run

        @boxed
        def call(args: list[Any]) -> Sequence[Any]:
            is_acquired = self.acquire()
            try:
                with nullcontext() if self._device.is_capturing else self.turn():
                    return run(args)
            finally:
                if is_acquired:
                    self.release()

        return call

    def acquire(self) -> bool:
        """Acquires the group for one run; False if that could deadlock.

        An operator of a program may call another program. A thread that has already acquired the
        group, or that launches kernels while another thread has, must not wait for it.
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

    def release(self) -> None:
        """Releases the group."""
        self._is_busy = False
        self._lock.release()

    def private_pool(self) -> Any:
        """A new pool for a capture whose outputs stay in its memory.

        No other capture may allocate from it, not even an earlier one, for which the memory of the
        outputs would count as free.
        """
        return self._device.pool()

    def pool_of_saved(self, address: int) -> Any:
        """The pool of the capture that saved the tensor at an address; None if it was freed.

        The saved tensors are allocated there, so the backward may use the rest. Another thread may
        free the capture at any time.
        """
        pool = self.saved_pools.get(address)
        return pool() if pool is not None else None

    def shared_pool(self) -> Any:
        """The pool of captures whose outputs are copied out; freed with the last of them."""
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            pool = self._device.pool()
            self._pool = weakref.ref(pool)
        return pool
