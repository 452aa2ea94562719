"""What programs that never run at the same time share: memory, and whose turn it is."""

import threading
import weakref
from typing import Any

from nimble_fx.devices import Device


class Arena:
    """The common ground of a forward and its backward, or of an inference program alone.

    Their captures take memory from one pool, where each may overwrite what the others left behind,
    so they run one at a time. What a forward saves for its backward stays where it is.

    Attributes:
        lock: held by whoever runs.
        is_busy: whether somebody does. An operator of a program may call the program.
        last: an event of the last replay, which may have been on another stream.
        saved: the addresses of what captures of the forward save for the backward.
    """

    def __init__(self, device: Device) -> None:
        self.lock = threading.RLock()
        self.is_busy = False
        self.last = device.events(("replay",)).replay
        self.saved: set[int] = set()
        self._device = device
        self._pool: weakref.ref[Any] | None = None

    def pool(self) -> Any:
        """The memory of all captures. It goes when the last of them goes."""
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            pool = self._device.pool()
            self._pool = weakref.ref(pool)
        return pool
