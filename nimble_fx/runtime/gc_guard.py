"""When memory is freed that nobody needs any more: not while a graph is captured."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Within, Python does not look for garbage, in any thread; then it does as before."""
    with _pauses.lock:
        if _pauses.depth == 0:
            _pauses.was_enabled = gc.isenabled()
            gc.disable()
        _pauses.depth += 1
    try:
        yield
    finally:
        held: list[object] = []
        with _pauses.lock:
            _pauses.depth -= 1
            if _pauses.depth == 0:
                held, _pauses.held = _pauses.held, held
                if _pauses.was_enabled:
                    gc.enable()
        held.clear()


class _Pauses:
    """How many blocks of `paused` are under way, and what waits for their end."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0
        self.was_enabled = False
        self.held: list[object] = []

    def free_later(self, thing: object) -> None:
        """Keeps a thing until no `paused` is under way any more.

        For what must not be freed at any moment, such as a CUDA graph while another is captured.
        """
        with self.lock:
            if self.depth:
                self.held.append(thing)


_pauses = _Pauses()

free_later = _pauses.free_later
"""It needs no module: those may be gone as Python exits."""
