"""Graphs are evicted if used least recently, and removed if memory that they read is freed."""

import gc
import weakref
from collections import OrderedDict
from threading import Thread
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters

from nimble_fx.devices.virtual.memory import Pool
from nimble_fx.runtime.capture import gc_guard, graph_cache
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.capture.graph_cache import (
    BREAK_EVEN_CALLS,
    EARLY_EVICTIONS_PER_GRAPH,
    GraphCache,
    GraphKey,
)
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from tests.support.replaying import ReplayingDevice


class FakeGraph:
    """The attributes of a captured graph that a cache reads."""

    shared_pool = Pool(set(), lambda: None)

    def __init__(
        self,
        saved: int = 0,
        n_replays: int = 0,
        pool: Pool | None = None,
        nbytes: tuple[int, ...] = (1, 2),
    ) -> None:
        self.saved_addresses, self.n_replays = {saved} if saved else set(), n_replays
        self.pool, self.nbytes = pool or self.shared_pool, nbytes

    def on_memory_freed(self, given: list[Any], static: list[Tensor], gone: Any) -> None:
        self._storages = [weakref.ref(tensor.untyped_storage(), gone) for tensor in static]


def cache_of(max_graphs: int = 2) -> tuple[GraphCache, PoolGroup, CaptureStatus]:
    pool_group, status = PoolGroup(ReplayingDevice()), CaptureStatus()
    return GraphCache(pool_group, max_graphs, status), pool_group, status


def add(
    cache: GraphCache,
    key: GraphKey,
    recorded: FakeGraph | None = None,
    static: list[Tensor] | None = None,
) -> None:
    cache.evict_for(key)
    cache.add(key, cast(CapturedGraph, recorded or FakeGraph()), [], static or [])


READ_IN_PLACE = [((1,), ()), ((2,), ()), ((1,), ((0, 3),))]
"""The addresses of parameters, and of the saved tensors among the inputs."""


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(READ_IN_PLACE)), max_size=60),
    st.integers(1, 4),
)
def test_of_each_set_of_parameters_and_saved_tensors_the_last_few_are_kept(
    uses: list[tuple[int, tuple[Any, Any]]], max_graphs: int
) -> None:
    cache, _, status = cache_of(max_graphs)
    expected: dict[tuple[Any, Any], OrderedDict[int, None]] = {}
    for size, parameters in uses:
        key = GraphKey((size,), *parameters)
        last = expected.setdefault(parameters, OrderedDict())
        assert (cache.get(key) is not None) == (size in last)
        if size not in last:
            add(cache, key)
        last[size] = None
        last.move_to_end(size)
        while len(last) > max_graphs:
            last.popitem(last=False)
    assert status.n_graphs == sum(map(len, expected.values()))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 9)), max_size=12))
def test_the_memory_is_that_of_all_pools_that_graphs_are_left_in(
    uses: list[tuple[bool, int, int]],
) -> None:
    cache, _, status = cache_of(max_graphs=9)
    shared, nbytes, alive = FakeGraph.shared_pool, (0, 0), dict[int, tuple[int, int]]()
    for is_removed, size, growth in uses:
        key, is_shared = GraphKey((size,), (), ()), size % 2
        if is_removed:
            cache.remove(key)
            alive.pop(size, None)
        elif size not in alive:
            nbytes = (nbytes[0] + growth, nbytes[1] + 1)  # a pool that is shared only grows
            pool = shared if is_shared else Pool(set(), lambda: None)
            add(cache, key, FakeGraph(pool=pool, nbytes=nbytes))
            alive[size] = nbytes
        of_pools = [n for size, n in alive.items() if not size % 2]
        of_pools += [max((n for size, n in alive.items() if size % 2), default=(0, 0))]
        assert sum(status.nbytes) == sum(map(sum, of_pools))
        assert status.nbytes in ((), tuple(map(sum, zip(*of_pools, strict=True))))
        assert status.n_graphs == len(alive)


def test_a_graph_that_is_used_again_outlives_one_that_is_not() -> None:
    cache, *_ = cache_of(max_graphs=2)
    used, unused, new = (GraphKey((size,), (), ()) for size in range(3))
    add(cache, used)
    add(cache, unused)
    assert cache.get(used) is not None
    before = counters["nimble"]["evictions"]
    add(cache, new)
    assert counters["nimble"]["evictions"] == before + 1
    assert cache.get(unused) is None
    assert cache.get(used) is not None


def test_past_the_limit_all_graphs_of_the_parameters_that_were_used_least_recently_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_cache, "MAX_PARAMETER_SETS", 2)
    cache, *_ = cache_of()
    keys = {
        (size, parameters): GraphKey((size,), (parameters,), ())
        for size in (1, 2)
        for parameters in (1, 2, 3)
    }
    for place in ((1, 1), (2, 1), (1, 2)):
        add(cache, keys[place])
    assert "sets of parameters" in str(cache.evict_for(keys[1, 3]))
    assert [cache.get(keys[place]) is not None for place in ((1, 1), (2, 1), (1, 2))] == [
        *(False, False, True)
    ]


def test_parameters_are_as_recently_used_as_the_last_used_of_their_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_cache, "MAX_PARAMETER_SETS", 2)
    cache, *_ = cache_of()
    for size, parameters in ((1, 1), (1, 2), (2, 1)):
        add(cache, GraphKey((size,), (parameters,), ()))
    cache.evict_for(GraphKey((1,), (3,), ()))
    assert cache.get(GraphKey((1,), (2,), ())) is None
    assert cache.get(GraphKey((1,), (1,), ())) is not None


def test_at_the_limit_of_parameters_those_that_have_graphs_evict_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_cache, "MAX_PARAMETER_SETS", 2)
    cache, *_ = cache_of(max_graphs=2)
    for parameters in (1, 2):
        add(cache, GraphKey((1,), (parameters,), ()))
    assert cache.evict_for(GraphKey((2,), (2,), ())) is None


def test_what_there_are_too_many_of_is_said() -> None:
    cache, *_ = cache_of(max_graphs=2)
    for size in (1, 2):
        assert cache.evict_for(GraphKey((size,), (1,), ())) is None
        add(cache, GraphKey((size,), (1,), ()))
    assert "sizes than graphs are kept (max_graphs=2)" in str(
        cache.evict_for(GraphKey((3,), (1,), ()))
    )


def test_a_capture_goes_with_the_memory_that_it_reads_where_it_is() -> None:
    cache, pool_group, status = cache_of()
    parameter, key = torch.zeros(3), GraphKey((), (1,), ())
    add(cache, key, FakeGraph(saved=7), [parameter])
    view = parameter[1:]
    del parameter
    assert cache.get(key) is not None
    assert set(pool_group.saved_pools) == {7}
    del view
    assert cache.get(key) is None
    assert set(pool_group.saved_pools) == set()
    assert pool_group.pool_of_saved(7) is None
    assert (status.frozen, status.n_captures) == (False, 1)


class FreesAsItIsHashed(int):
    """A number whose hash frees memory, as garbage that is collected at any moment does."""

    def __new__(cls, memory: list[Tensor]) -> "FreesAsItIsHashed":
        number = super().__new__(cls)
        number.memory = memory
        return number

    memory: list[Tensor]

    def __hash__(self) -> int:
        self.memory.clear()
        return 0


def test_memory_may_be_freed_while_the_cache_is_searched() -> None:
    cache, *_ = cache_of()
    memory, key = [torch.zeros(3)], GraphKey((), (1,), ())
    add(cache, key, static=memory[:])
    searched = GraphKey((FreesAsItIsHashed(memory),), (), ())
    thread = Thread(target=cache.get, args=(searched,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert cache.get(key) is None


class FreesAsItIsCounted(FakeGraph):
    """Its size frees memory that another graph reads, as a garbage collection may."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = list[Tensor]()

    def __getattribute__(self, name: str) -> Any:
        if name == "nbytes":
            self.memory.clear()
        return super().__getattribute__(name)


def test_memory_may_be_freed_while_graphs_are_counted() -> None:
    cache, _, status = cache_of()
    keys, parameters = [GraphKey((), (i,), ()) for i in range(3)], [torch.zeros(3)]
    frees = FreesAsItIsCounted()
    add(cache, keys[0], frees)
    add(cache, keys[1], static=parameters[:])
    frees.memory = parameters
    add(cache, keys[2])
    assert [cache.get(key) is not None for key in keys] == [True, False, True]
    assert status.n_graphs == 2


def test_what_went_before_it_paid_off_is_counted() -> None:
    cache, *_ = cache_of(max_graphs=1)
    new, early = (GraphKey((-1 - i,), (), ()) for i in range(2))
    n_replays = [BREAK_EVEN_CALLS] * 9 + [BREAK_EVEN_CALLS - 1] * (EARLY_EVICTIONS_PER_GRAPH - 1)
    for size, n in enumerate([*n_replays, BREAK_EVEN_CALLS + 1]):
        add(cache, GraphKey((size,), (), ()), FakeGraph(n_replays=n))
    assert cache.should_capture(new)
    add(cache, early, FakeGraph(n_replays=0))
    cache.remove(early)
    assert not cache.should_capture(new)


def test_removing_a_graph_again_does_nothing() -> None:
    cache, *_ = cache_of(max_graphs=1)
    for size in range(EARLY_EVICTIONS_PER_GRAPH - 1):
        key = GraphKey((size,), (), ())
        add(cache, key)
        for _ in range(2):
            cache.remove(key)
    assert len(cache) == 0
    assert cache.should_capture(GraphKey((-1,), (), ()))


def test_the_memory_of_saved_tensors_goes_with_the_forward_though_the_backward_stays() -> None:
    cache, pool_group, _ = cache_of()
    graph = FakeGraph(saved=7)
    graph.pool = Pool(set(), lambda: None)
    gone = weakref.ref(graph.pool)
    add(cache, GraphKey((), (1,), ()), graph)
    del graph
    assert gone() is not None
    del cache
    assert gone() is None
    assert pool_group.pool_of_saved(7) is None


def test_who_keeps_captures_is_not_kept_by_the_memory_that_they_read() -> None:
    cache, _, status = cache_of()
    parameter = torch.zeros(3)
    add(cache, GraphKey((), (1,), ()), static=[parameter])
    gc.disable()
    try:
        freed = weakref.ref(cache)
        del cache
        assert freed() is None
        assert not status.frozen
    finally:
        gc.enable()
    del parameter


def test_once_too_many_went_early_only_what_comes_often_is_worth_a_capture() -> None:
    cache, *_ = cache_of(max_graphs=1)
    often = GraphKey((-1,), (), ())
    for size in range(EARLY_EVICTIONS_PER_GRAPH + 1):
        key = GraphKey((size,), (), ())
        assert cache.should_capture(key)
        add(cache, key)
    for size in range(BREAK_EVEN_CALLS):
        assert not cache.should_capture(often)
        assert not cache.should_capture(GraphKey((-2 - size,), (), ()))
    assert cache.should_capture(often)
    add(cache, often)
    cache.remove(often)
    assert not cache.should_capture(often)  # it has to come as often again


@pytest.mark.parametrize("key", [GraphKey((), (1,), ()), GraphKey((), (), ((0, 1),))])
def test_captures_whose_memory_is_there_outlive_the_last_of_another_program(key: GraphKey) -> None:
    one, pool_group, _ = cache_of()
    other, parameter = GraphCache(pool_group, 2, CaptureStatus()), torch.zeros(3)
    add(one, GraphKey((), (2,), ()), static=[parameter])
    add(other, key)
    del parameter
    assert (len(one), len(other)) == (0, 1)


def test_backwards_that_read_no_parameters_go_with_the_forwards_captures() -> None:
    forward, pool_group, _ = cache_of()
    backward, parameter = GraphCache(pool_group, 2, CaptureStatus()), torch.zeros(3)
    other = torch.zeros(3)
    add(forward, GraphKey((), (1,), ()), static=[parameter])
    add(forward, GraphKey((), (2,), ()), static=[other])
    add(backward, GraphKey((), (), ()))
    del other
    assert (len(forward), len(backward)) == (1, 1)
    del parameter
    assert (len(forward), len(backward)) == (0, 0)


def test_all_backwards_go_though_a_program_is_made_in_their_group_meanwhile() -> None:
    forward, pool_group, _ = cache_of()
    backwards = [GraphCache(pool_group, 2, CaptureStatus()) for _ in range(2)]

    class MakesAProgram(FakeGraph):
        def __del__(self) -> None:
            made.append(GraphCache(pool_group, 2, CaptureStatus()))

    parameter, made = torch.zeros(3), list[GraphCache]()
    add(forward, GraphKey((), (1,), ()), static=[parameter])
    for backward in backwards:
        add(backward, GraphKey((), (), ()), MakesAProgram())
    del parameter
    assert list(map(len, backwards)) == [0, 0]
    assert len(made) == 2


@pytest.mark.parametrize("is_removed", [True, False])
def test_captures_that_go_while_another_is_made_wait_for_its_end(is_removed: bool) -> None:
    cache, *_ = cache_of()
    recorded = FakeGraph()
    gone = weakref.ref(recorded)
    add(cache, GraphKey((), (1,), ()), recorded)
    del recorded
    with gc_guard.paused():
        if is_removed:
            cache.remove(GraphKey((), (1,), ()))
        del cache
        assert gone() is not None
    assert gone() is None
