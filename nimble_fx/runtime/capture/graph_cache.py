"""A cache of the captured graphs of one program, with least-recently-used eviction."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor

from nimble_fx.runtime.break_even import BreakEven
from nimble_fx.runtime.capture import gc_guard
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.torch_internals.dynamo.counters import count_event
from nimble_fx.torch_internals.dynamo.untraced import untraced

BREAK_EVEN_CALLS = 8
"""A capture takes about as much time as this many unfrozen calls."""

EARLY_EVICTIONS_PER_GRAPH = 4
"""How many graphs may be removed before they break even, for each graph of `max_graphs`."""

MAX_PARAMETER_SETS = 128
"""The most sets of parameters with graphs at a time; many layers may share a program."""


class GraphKey(NamedTuple):
    """The values and addresses that a captured graph is specialized on.

    Attributes:
        numbers: the numbers and sizes that it depends on; see `SpecializedNumbers`.
        static: the addresses of the parameters and buffers.
        fixed: position and address of each input that a forward saved and that is read in place.
        saves_in_place: whether tensors saved for the backward stay in the graph's memory.
    """

    numbers: tuple[Any, ...]
    static: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    saves_in_place: bool = True

    @property
    def addresses(self) -> object:
        """The addresses of all memory that the graph reads in place."""
        return self.static, self.fixed


class GraphCache:
    """The captured graphs of one program: up to `max_graphs` for each set of parameters.

    With more, the least recently used one is evicted. A graph is also removed when memory that it
    reads in place is freed, which may happen at any time, in any thread.

    Attributes:
        latest: the most recently used graph and its key; None if it was removed.
    """

    def __init__(self, pool_group: PoolGroup, max_graphs: int, status: CaptureStatus) -> None:
        self._pool_group, self._max_graphs, self._status = pool_group, max_graphs, status
        self._graphs: OrderedDict[GraphKey, CapturedGraph] = OrderedDict()
        self._lock = threading.RLock()
        self._break_even = BreakEven(BREAK_EVEN_CALLS, EARLY_EVICTIONS_PER_GRAPH * max_graphs)
        self.latest: tuple[GraphKey, CapturedGraph] | None = None
        pool_group.graph_caches.add(self)

    def __del__(self, free_later: Callable[[object], None] = gc_guard.free_later) -> None:
        self._status.n_graphs = 0
        free_later(list(self._graphs.values()))  # a default: Python clears modules as it exits

    def get(self, key: GraphKey) -> CapturedGraph | None:
        """The graph for a key, which becomes the most recently used; None if there is none."""
        with self._lock:
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
                self.latest = key, graph
            return graph

    def should_capture(self, key: GraphKey) -> bool:
        """Whether to capture a call for which there is no graph.

        Yes, until too many graphs were removed before they broke even. From then on only a
        key that has been called often enough to break even is captured.
        """
        return self._break_even.pays_off(key)

    def evict_for(self, key: GraphKey) -> str | None:
        """Evicts the least recently used graphs to make room for one more.

        Args:
            key: the key of the graph to add.

        Returns:
            If a graph was evicted, what there were too many of: sizes, or sets of parameters.
        """
        with self._lock:
            keys = list(self._graphs)
        same = [other for other in keys if other.addresses == key.addresses]
        evicted = same[: max(len(same) + 1 - self._max_graphs, 0)]
        reason = (
            f"sizes than graphs are kept (max_graphs={self._max_graphs}): for each new one the "
            "least recently used graph is evicted. Pad inputs to a few sizes, or raise the option"
        )
        latest_first = dict.fromkeys(other.addresses for other in reversed(keys))
        if not same and len(latest_first) >= MAX_PARAMETER_SETS:
            *_, oldest = latest_first
            evicted = [other for other in keys if other.addresses == oldest]
            reason = (
                f"sets of parameters than graphs are kept for ({MAX_PARAMETER_SETS}): for each new "
                "one the graphs of the least recently used set are evicted"
            )
        for other in evicted:
            self.remove(other)
            count_event("evictions")
        return reason if evicted else None

    def add(
        self, key: GraphKey, graph: CapturedGraph, inputs: Sequence[Any], static: Sequence[Tensor]
    ) -> None:
        """Adds a graph that was captured for these inputs and parameters."""
        with self._lock:
            self._graphs[key] = graph
            self.latest = key, graph
            self._break_even.made(key)
            self._status.n_captures += 1
            self._update_status()
        pool = weakref.ref(graph.pool)
        self._pool_group.saved_pools.update(dict.fromkeys(graph.saved_addresses, pool))
        freed = partial(untraced(_remove_dead), weakref.ref(self), key)
        graph.on_memory_freed(inputs, static, freed)

    def remove(self, key: GraphKey) -> None:
        """Removes the graph for a key, if there is one."""
        with self._lock:
            graph, self.latest = self._graphs.pop(key, None), None
            self._update_status()
        if graph is not None:  # outside of the lock: freeing it may remove other graphs
            self._break_even.dropped(graph.n_replays)
            for address in graph.saved_addresses:
                self._pool_group.saved_pools.pop(address, None)
            gc_guard.free_later(graph)

    def _update_status(self) -> None:
        """Counts the graphs and the memory of their pools, which grow with each capture."""
        by_pool: dict[int, tuple[int, ...]] = {}
        for graph in list(self._graphs.values()):  # memory that is freed meanwhile removes graphs
            place = id(graph.pool)
            by_pool[place] = max(by_pool.get(place, ()), graph.nbytes, key=sum)
        totals = [sum(each) for each in zip_longest(*by_pool.values(), fillvalue=0)]
        self._status.n_graphs, self._status.nbytes = len(self._graphs), tuple(totals)

    def remove_unwatched(self) -> None:
        """Removes the graphs that read no memory in place, so that freed memory never removes them.

        These are graphs of backwards of functions without parameters; they are removed together
        with those of the forward.
        """
        with self._lock:
            keys = list(self._graphs)
        for key in keys:
            if not (key.static or key.fixed):
                self.remove(key)

    def __len__(self) -> int:
        return len(self._graphs)


def _remove_dead(cache: "weakref.ref[GraphCache]", key: GraphKey, _: object) -> None:
    """Removes a graph whose memory was freed; with the last one, the group's unwatched graphs."""
    graphs = cache()
    if graphs is not None:
        graphs.remove(key)
        if not graphs:
            for others in list(graphs._pool_group.graph_caches):
                others.remove_unwatched()
