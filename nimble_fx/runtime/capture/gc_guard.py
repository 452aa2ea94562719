"""Keeps memory from being freed while a graph is captured, which CUDA forbids."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Disables Python's cyclic garbage collector within the block, for all threads."""
    with _pauses.lock:
        if _pauses.depth == 0:
            _pauses.was_enabled = gc.isenabled()
            gc.disable()
        _pauses.depth += 1
    try:
        yield
    finally:
        deferred: list[object] = []
        with _pauses.lock:
            _pauses.depth -= 1
            if _pauses.depth == 0:
                deferred, _pauses.deferred = _pauses.deferred, deferred
                if _pauses.was_enabled:
                    gc.enable()
        deferred.clear()


class _PauseState:
    """How many blocks of `paused` are open, and the objects to free when the last one ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0
        self.was_enabled = False
        self.deferred: list[object] = []

    def free_later(self, item: object) -> None:
        """Keeps an object alive until no block of `paused` is open.

        For objects that must not be freed at certain times, such as a CUDA graph during a capture.
        """
        with self.lock:
            if self.depth:
                self.deferred.append(item)


_pauses = _PauseState()

free_later = _pauses.free_later
"""A bound method: it works without this module's globals, which Python clears as it exits."""
