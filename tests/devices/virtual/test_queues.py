"""Queues run in exactly the orders that streams and events allow, according to networkx."""

from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.devices.virtual.queues import ORDERS, Mark, Queues
from tests.strategies import Given, given_to_streams


def queues_of(given_: Sequence[Given], ran: list[int]) -> Queues:
    """Queues whose kernels note their numbers; each `Given` is a kernel, which may wait."""
    queues, marks = Queues(), list[Mark]()
    for i, (stream, waits) in enumerate(given_):
        for j in waits:
            queues.wait(stream, marks[j])
        queues.launch(stream, lambda i=i: ran.append(i))  # type: ignore[misc]
        marks.append(queues.mark(stream))
    return queues


def before(given_: Sequence[Given]) -> "nx.DiGraph[int]":
    """The orders that streams and events mean."""
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(given_)))
    for stream in {stream for stream, _ in given_}:
        order.add_edges_from(pairwise(i for i, (s, _) in enumerate(given_) if s == stream))
    order.add_edges_from((j, i) for i, (_, waits) in enumerate(given_) for j in waits)
    return order


@given(given_to_streams(), st.sampled_from(ORDERS), st.integers(0, 99))
def test_all_kernels_run_in_an_order_that_streams_and_events_allow(
    given_: list[Given], order: object, seed: int
) -> None:
    ran: list[int] = []
    queues_of(given_, ran).run(order(Random(seed)))  # type: ignore[operator]
    assert sorted(ran) == list(range(len(given_)))
    assert all(ran.index(i) < ran.index(j) for i, j in before(given_).edges)


@given(given_to_streams(max_kernels=5))
def test_every_order_that_is_allowed_comes_up(given_: list[Given]) -> None:
    n, order = len(given_), before(given_)
    allowed = {
        p for p in permutations(range(n)) if all(p.index(i) < p.index(j) for i, j in order.edges)
    }
    seen, ran, random = set(), list[int](), Random(0)
    queues = queues_of(given_, ran)
    for _ in range(1000 * len(allowed)):
        ran.clear()
        queues.run(random.choice(ORDERS)(random))
        seen.add(tuple(ran))
        if seen == allowed:
            break
    assert seen == allowed


@given(given_to_streams(), st.sampled_from(ORDERS), st.integers(0, 99))
def test_the_same_seed_gives_the_same_order(given_: list[Given], order: object, seed: int) -> None:
    first, second = list[int](), list[int]()
    for ran in (first, second):
        queues_of(given_, ran).run(order(Random(seed)))  # type: ignore[operator]
    assert first == second


@given(given_to_streams())
def test_streams_are_unjoined_exactly_if_the_origins_end_does_not_come_after_them(
    given_: list[Given],
) -> None:
    order = before(given_)
    ends = [i for i, (stream, _) in enumerate(given_) if stream == 0][-1:]
    joined = {i for end in ends for i in (*nx.ancestors(order, end), end)}
    expected = {stream for i, (stream, _) in enumerate(given_) if i not in joined}
    assert queues_of(given_, []).unjoined(0) == expected


def test_a_wait_with_nothing_behind_it_is_unjoined_too() -> None:
    queues = Queues()
    queues.launch(0, lambda: None)
    queues.wait(1, queues.mark(0))
    assert queues.unjoined(0) == {1}


def test_a_mark_of_other_queues_has_been_passed() -> None:
    ran: list[int] = []
    earlier, queues = Queues(), Queues()
    earlier.launch(0, lambda: None)
    queues.wait(1, earlier.mark(0))
    queues.launch(1, lambda: ran.append(1))
    queues.run(ORDERS[0](Random(0)))
    assert ran == [1]


def test_a_kernel_before_the_next_runs_only_if_there_is_a_next() -> None:
    ran: list[str] = []
    queues = Queues()
    queues.launch_before_next(1, lambda: ran.append("before"))
    queues.run(ORDERS[0](Random(0)))
    assert ran == []
    queues.launch(1, lambda: ran.append("next"))
    queues.run(ORDERS[0](Random(0)))
    assert ran == ["before", "next"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_cleared_queue_is_empty(order: object) -> None:
    ran: list[int] = []
    queues = queues_of([(0, ()), (1, (0,))], ran)
    queues.launch_before_next(0, lambda: ran.append(9))
    queues.clear()
    queues.launch(0, lambda: ran.append(5))
    queues.run(order(Random(0)))  # type: ignore[operator]
    assert ran == [5]
