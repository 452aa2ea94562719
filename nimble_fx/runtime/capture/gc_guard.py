"""Keeps memory from being freed while a graph is captured, which CUDA forbids."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Disables Python's cyclic garbage collector within the block, for all threads."""
    thread = threading.get_ident()
    with _pauses.lock:
        if not _pauses.threads:
            _pauses.was_enabled = gc.isenabled()
            gc.disable()
        _pauses.threads.append(thread)
    try:
        yield
    finally:
        deferred: list[object] = []
        with _pauses.lock:
            _pauses.threads.remove(thread)
            if not _pauses.threads:
                deferred, _pauses.deferred = _pauses.deferred, deferred
                if _pauses.was_enabled:
                    gc.enable()
        deferred.clear()


class _PauseState:
    """The threads in blocks of `paused`, and the objects to free when the last block ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads: list[int] = []
        self.was_enabled = False
        self.deferred: list[object] = []

    def free_later(self, item: object) -> None:
        """Keeps an object alive until no block of `paused` is open.

        For objects that must not be freed at certain times, such as a CUDA graph during a capture.
        """
        with self.lock:
            if self.threads:
                self.deferred.append(item)

    def keep_own(self) -> None:
        """Ends the blocks of all other threads, which a fork leaves behind."""
        self.lock, was_paused, own = threading.RLock(), bool(self.threads), threading.get_ident()
        self.threads = [thread for thread in self.threads if thread == own]
        if was_paused and not self.threads and self.was_enabled:
            gc.enable()


_pauses = _PauseState()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_pauses.keep_own)

free_later = _pauses.free_later
"""A bound method: it works without this module's globals, which Python clears as it exits."""
