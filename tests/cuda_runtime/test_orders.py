"""Work runs in exactly the orders that streams and events allow."""

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.cuda_runtime import library
from tests.cuda_runtime.cuda_libraries import runtime
from tests.cuda_runtime.host_functions import enqueue

pytestmark = pytest.mark.gpu

N_SEEDS = 150

Orders = set[tuple[str, ...]]


def orders(issue: Callable[[Callable[[str], None]], object], mode: str = "random") -> Orders:
    """The orders in which what is issued runs, by seed; the device is synchronized after each."""
    found = Orders()
    torch.cuda.init()
    for seed in range(N_SEEDS if mode == "random" else 1):
        library.set_mode(mode, seed)
        ran = list[str]()
        issue(lambda name, ran=ran: enqueue(name, lambda: ran.append(name)))  # type: ignore[misc]
        torch.cuda.synchronize()
        found.add(tuple(ran))
    return found


def two_streams(put: Callable[[str], None]) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        put("a1")
        put("a2")
    with torch.cuda.stream(torch.cuda.Stream()):
        put("b")


def test_tasks_of_a_stream_keep_their_order_and_streams_have_none() -> None:
    a1_a2_b = ("a1", "a2", "b")
    assert orders(two_streams) == {a1_a2_b, ("a1", "b", "a2"), ("b", "a1", "a2")}
    assert orders(two_streams, "eager") == {a1_a2_b}
    assert orders(two_streams, "lazy") == {("b", "a1", "a2")}


def test_lazily_only_what_is_waited_for_runs() -> None:
    library.set_mode("lazy")
    ran = list[str]()
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (one, other):
        with torch.cuda.stream(stream):
            enqueue("task", lambda name=str(stream.cuda_stream): ran.append(name))  # type: ignore[misc]
    assert ran == []
    other.synchronize()
    assert ran == [str(other.cuda_stream)]


def test_a_stream_waits_for_the_events_that_it_was_told_to() -> None:
    def issue(put: Callable[[str], None]) -> None:
        one, other = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            put("before")
            event = one.record_event()
            put("after")
        other.wait_event(event)
        with torch.cuda.stream(other):
            put("waiting")

    found = orders(issue)
    assert all(order.index("before") < order.index("waiting") for order in found)
    assert {order.index("after") < order.index("waiting") for order in found} == {True, False}


def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    def issue(put: Callable[[str], None]) -> None:
        blocking = torch.cuda.ExternalStream(_new_stream(flags=0))
        free = torch.cuda.ExternalStream(_new_stream(flags=1))
        for name, stream in (("first", blocking), ("free", free)):
            with torch.cuda.stream(stream):
                put(name)
        put("legacy")
        with torch.cuda.stream(blocking):
            put("last")

    found = orders(issue)
    assert {tuple(n for n in order if n != "free") for order in found} == {
        ("first", "legacy", "last")
    }
    assert {order.index("free") for order in found} == {0, 1, 2, 3}


def test_memory_is_freed_between_the_earlier_and_the_later_work_of_all_streams() -> None:
    def issue(put: Callable[[str], None]) -> None:
        address = ctypes.c_void_p()
        assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1)) == 0
        for name in ("earlier", "later"):
            with torch.cuda.stream(torch.cuda.Stream()):
                put(name)
            runtime.cudaFree(address)

    assert orders(issue) == {("earlier", "later")}


def _new_stream(flags: int) -> int:
    stream = ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), flags) == 0
    return stream.value or 0


def captured(put: Callable[[str], None]) -> torch.cuda.CUDAGraph:
    """A graph of a fork, two branches, and a join."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        put("fork")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            put("side")
        put("main")
        torch.cuda.current_stream().wait_stream(side)
        put("join")
    return graph


def test_a_replay_keeps_to_the_graphs_edges_alone() -> None:
    found = orders(lambda put: captured(put).replay())
    assert found == {("fork", "side", "main", "join"), ("fork", "main", "side", "join")}


def test_the_nodes_of_a_replay_interleave_with_other_streams() -> None:
    def issue(put: Callable[[str], None]) -> None:
        graph = captured(put)
        with torch.cuda.stream(torch.cuda.Stream()):
            put("other")
        graph.replay()

    assert {order.index("other") for order in orders(issue)} == {0, 1, 2, 3, 4}


def test_replays_of_one_graph_never_overlap_whatever_their_streams() -> None:
    def issue(put: Callable[[str], None]) -> None:
        graph = captured(put)
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.replay()

    found = orders(issue)
    assert {(order.index("join"), order[4]) for order in found} == {(3, "fork")}


def test_a_capture_runs_nothing() -> None:
    assert orders(captured) == {()}


def test_a_graph_that_is_dropped_in_flight_runs_to_its_end() -> None:
    def issue(put: Callable[[str], None]) -> None:
        graph = captured(put)
        graph.replay()
        graph.reset()

    assert all(order[-1] == "join" for order in orders(issue))


def read_by_another_stream(is_ordered: bool) -> set[float]:
    """What a stream reads of a tensor that is filled by another."""
    seen = set[float]()
    for seed in range(N_SEEDS):
        library.set_mode("random", seed)
        main, side, x = torch.cuda.current_stream(), torch.cuda.Stream(), _filled(1.0)
        x.fill_(5.0)
        if is_ordered:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            y = x * 2
        side.synchronize()
        seen.add(y.cpu()[0].item())
        torch.cuda.synchronize()
    return seen


def _filled(value: float) -> Tensor:
    x = torch.full((4,), value, device="cuda")
    torch.cuda.synchronize()
    return x


def test_a_wait_that_is_missing_is_seen() -> None:
    assert read_by_another_stream(is_ordered=True) == {10.0}
    assert read_by_another_stream(is_ordered=False) == {2.0, 10.0}
