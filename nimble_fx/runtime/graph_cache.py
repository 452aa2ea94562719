"""Which captures of a program are kept, and which go."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from nimble_fx.runtime import gc_guard
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.runtime.captured_graph import CapturedGraph
from nimble_fx.runtime.pool_group import PoolGroup
from nimble_fx.torch_internals.counters import count_event

PAYS_OFF = 8
"""A capture costs about as much time as so many unfrozen calls."""

WASTED_PER_GRAPH = 4
"""So many captures may be dropped before they have paid off, for each graph that may be kept."""

MAX_OWNERS = 128
"""So many sets of parameters have captures at a time; a program may be shared by many layers."""


_MAX_COUNTED = 64
"""Of so many keys it is known how often they came."""


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


class GraphCache:
    """The captures of one program: `max_graphs` for each owner, those that were replayed last.

    A capture also goes when memory goes that it reads where it is. That may happen at any moment,
    in any thread.
    """

    def __init__(self, pool_group: PoolGroup, max_graphs: int, status: CaptureStatus) -> None:
        self._pool_group, self._max_graphs, self._status = pool_group, max_graphs, status
        self._graphs: OrderedDict[Key, CapturedGraph] = OrderedDict()
        self._lock = threading.RLock()
        self._n_wasted = 0
        self._n_calls: OrderedDict[Key, int] = OrderedDict()
        pool_group.programs.add(self)

    def __del__(self, hold: Callable[[object], None] = gc_guard.free_later) -> None:
        self._status.n_graphs = 0
        hold(list(self._graphs.values()))  # a default: modules may be gone as Python exits

    def get(self, key: Key) -> CapturedGraph | None:
        """The capture for a key, if there is one; it is the last that will go."""
        with self._lock:
            captured = self._graphs.get(key)
            if captured is not None:
                self._graphs.move_to_end(key)
            return captured

    def is_worth_a_capture(self, key: Key) -> bool:
        """Whether a call for which there is no capture should be captured.

        It should, unless too many captures went before they had paid off. From then on it is once
        the same key has come as often as it takes to pay off.
        """
        if self._n_wasted < WASTED_PER_GRAPH * self._max_graphs:
            return True
        self._n_calls[key] = self._n_calls.pop(key, 0) + 1
        while len(self._n_calls) > _MAX_COUNTED:
            self._n_calls.popitem(last=False)
        return self._n_calls[key] > PAYS_OFF

    def make_room(self, key: Key) -> bool:
        """Drops what must go before a capture can be added; whether anything did."""
        with self._lock:
            keys = list(self._graphs)
        of_owner = [other for other in keys if other.owner == key.owner]
        leaving = of_owner[: max(len(of_owner) + 1 - self._max_graphs, 0)]
        owners = dict.fromkeys(other.owner for other in keys)
        if not of_owner and len(owners) >= MAX_OWNERS:
            first = next(iter(owners))
            leaving = [other for other in keys if other.owner == first]
        for other in leaving:
            self.forget(other)
            count_event("evictions")
        return bool(leaving)

    def add(
        self, key: Key, captured: CapturedGraph, given: list[Any], static: list[Tensor]
    ) -> None:
        """Keeps a capture that was made for these inputs."""
        with self._lock:
            self._graphs[key] = captured
            self._n_calls.pop(key, None)
            self._status.n_captures += 1
            self._status.n_graphs, self._status.nbytes = len(self._graphs), captured.nbytes
        pool = weakref.ref(captured.pool)
        self._pool_group.saved.update(dict.fromkeys(captured.saved_addresses, pool))
        captured.when_memory_goes(given, static, partial(_forget, weakref.ref(self), key))

    def forget(self, key: Key) -> None:
        """Drops a capture, if there is one."""
        with self._lock:
            captured = self._graphs.pop(key, None)
            self._status.n_graphs = len(self._graphs)
        if captured is not None:  # it goes outside of the lock, and others may go with it
            self._n_wasted += captured.n_replays < PAYS_OFF
            for address in captured.saved_addresses:
                self._pool_group.saved.pop(address, None)
            gc_guard.free_later(captured)

    def forget_what_nobody_owns(self) -> None:
        """Drops the captures that read no memory where it is, whose going would tell of their end.

        Such are backwards of functions without parameters: they go with the forward's captures.
        """
        with self._lock:
            keys = list(self._graphs)
        for key in keys:
            if not (key.static or key.fixed):
                self.forget(key)

    def __len__(self) -> int:
        return len(self._graphs)


def _forget(kept: "weakref.ref[GraphCache]", key: Key, _: object) -> None:
    """Drops a capture of a program that may be gone itself, and what is of no use without it."""
    captures = kept()
    if captures is not None:
        captures.forget(key)
        if not captures:
            for others in list(captures._pool_group.programs):
                others.forget_what_nobody_owns()
