"""Which captures of a program are kept, and which go."""

import weakref
from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from nimble_fx import garbage
from nimble_fx.arena import Arena
from nimble_fx.fallback import count
from nimble_fx.recording import Recording
from nimble_fx.status import Status

PAYS_OFF = 8
"""A capture costs about as much time as so many unfrozen calls."""

MAX_OWNERS = 128
"""So many sets of parameters have captures at a time; a program may be shared by many layers."""


class Key(NamedTuple):
    """What a capture is bound to.

    Attributes:
        numbers: the numbers among the inputs: sizes, where they are symbolic.
        static: the addresses of the parameters.
        fixed: which of the other inputs are read where a forward left them, and where that is.
        saves_in_place: whether what is saved for the backward stays in the capture's memory.
    """

    numbers: tuple[Any, ...]
    static: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    saves_in_place: bool = True

    @property
    def owner(self) -> object:
        """Whose capture it is: memory that it reads where it is."""
        return self.static, self.fixed


class Kept:
    """The captures of one program: `max_graphs` for each owner, those that were replayed last.

    A capture also goes when memory goes that it reads where it is.

    Attributes:
        n_wasted: how many went before they had paid off.
    """

    def __init__(self, arena: Arena, max_graphs: int, status: Status) -> None:
        self.n_wasted = 0
        self._arena, self._max_graphs, self._status = arena, max_graphs, status
        self._recordings: OrderedDict[Key, Recording] = OrderedDict()
        weakref.finalize(self, status.drop).atexit = False

    def get(self, key: Key) -> Recording | None:
        """The capture for a key, if there is one; it is the last that will go."""
        recording = self._recordings.get(key)
        if recording is not None:
            self._recordings.move_to_end(key)
        return recording

    def make_room(self, key: Key) -> bool:
        """Drops what must go before a capture can be added; whether anything did."""
        owners = dict.fromkeys(other.owner for other in self._recordings)
        of_owner = [other for other in self._recordings if other.owner == key.owner]
        leaving = of_owner[: max(len(of_owner) + 1 - self._max_graphs, 0)]
        if not of_owner and len(owners) >= MAX_OWNERS:
            first = next(iter(owners))
            leaving = [other for other in self._recordings if other.owner == first]
        for other in leaving:
            self.forget(other)
            count("evictions")
        return bool(leaving)

    def add(self, key: Key, recording: Recording, given: list[Any], static: list[Tensor]) -> None:
        """Keeps a capture that was made for these inputs."""
        self._recordings[key] = recording
        self._status.n_captures += 1
        self._status.n_graphs, self._status.nbytes = len(self._recordings), recording.nbytes
        self._arena.saved |= recording.saved_addresses
        recording.when_memory_goes(given, static, partial(_forget, weakref.ref(self), key))

    def forget(self, key: Key) -> None:
        """Drops a capture, if there is one."""
        recording = self._recordings.pop(key, None)
        if recording is not None:
            self._status.n_graphs = len(self._recordings)
            self.n_wasted += recording.n_replays < PAYS_OFF
            self._arena.saved -= recording.saved_addresses
            garbage.hold(recording)


def _forget(kept: "weakref.ref[Kept]", key: Key, _: object) -> None:
    """Drops a capture of a program that may be gone itself."""
    captures = kept()
    if captures is not None:
        captures.forget(key)
