"""A lock that knows whether the calling thread holds it."""

import threading
from types import TracebackType


class Lock:
    """A reentrant lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._here = threading.local()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds it."""
        return getattr(self._here, "depth", 0) > 0

    def __enter__(self) -> "Lock":
        self._lock.acquire()
        self._here.depth = getattr(self._here, "depth", 0) + 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._here.depth -= 1
        self._lock.release()


class NoLock(Lock):
    """A lock that any number of threads may hold at a time."""

    @property
    def is_held_here(self) -> bool:
        """False, because no thread ever waits for it."""
        return False

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
