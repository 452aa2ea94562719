"""What programs that never run at the same time share: memory, and whose turn it is."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from nimble_fx.devices import Device

Boxed = Callable[[list[Any]], Sequence[Any]]
"""AOTAutograd's convention: a call takes a list of inputs and empties it."""


class Arena:
    """The common ground of a forward and its backward, or of an inference program alone.

    Their captures take memory from one pool, where each may overwrite what the others left behind,
    so they run one at a time, each after the last, whatever streams they are called on. What a
    forward saves for its backward stays where it is.

    Attributes:
        lock: held by whoever runs.
        is_busy: whether somebody does. An operator of a program may call the program.
        saved: the addresses of what captures of the forward save for the backward.
    """

    def __init__(self, device: Device) -> None:
        self.lock = threading.RLock()
        self.is_busy = False
        self._last = device.events(("replay",)).replay
        self.saved: set[int] = set()
        self._device = device
        self._pool: weakref.ref[Any] | None = None

    def wait(self) -> None:
        """The current stream waits for whoever ran last."""
        (caller,) = self._device.streams(1)
        caller.wait_event(self._last)

    def leave(self) -> None:
        """Whoever runs next will wait for what the current stream was given."""
        (caller,) = self._device.streams(1)
        self._last.record(caller)

    def unfrozen(self, run: Boxed) -> Boxed:
        """Runs a program that has no captures, in turn: it may read what a capture has saved."""

        def call(args: list[Any]) -> Sequence[Any]:
            with self.lock:
                outputs = run(args)
                if not self._device.is_capturing:
                    self.leave()
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return call

    def pool(self) -> Any:
        """The memory of all captures. It goes when the last of them goes."""
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            pool = self._device.pool()
            self._pool = weakref.ref(pool)
        return pool
