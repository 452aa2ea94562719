"""Edits preserve required orders, do what they say, and change nothing else."""

import math
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nimble_fx.errors import OptionError, ScheduleError
from nimble_fx.simulation.discrete_event import Activity, simulate
from nimble_fx.traces.recorded import BEGIN
from nimble_fx.what_if.edits import (
    fused,
    inserted,
    moved,
    removed,
    scaled,
    together,
    without_host,
)
from tests.strategies.activities import HOST, STREAMS, activities
from tests.support.activity_orders import among, digraph, makespan, orders, starts

CALLED = (
    Activity("call a", "host", 2),
    Activity("a", "s0", 5, (("call a", 1.0),), "gpu", 1.0, 0.5),
    Activity("call b", "host", 2),
    Activity("b", "s0", 5, (("call b", 1.0),), "gpu", 0.5, 0.5),
    Activity("call c", "host", 2),
    Activity("c", "s0", 5, (("call c", 1.0),), "gpu"),
)
"""Three kernels on a stream, each with the host's call that launches it."""


def names(drawn: tuple[Activity, ...] | list[Activity]) -> list[str]:
    return [activity.name for activity in drawn]


def some(data: st.DataObject, drawn: list[Activity]) -> set[str]:
    return {activity.name for activity in drawn if data.draw(st.booleans())}


@given(activities(delays=False), st.floats(0, 10))
def test_all_of_one_queue_scaled_is_the_makespan_scaled(
    drawn: list[Activity], factor: float
) -> None:
    alone = tuple(replace(activity, queue="s0") for activity in drawn)
    assert makespan(scaled(alone, names(alone), factor)) == pytest.approx(factor * makespan(alone))


@given(activities(), st.data(), st.integers(0, 3), st.integers(0, 3))
def test_scaling_commutes(drawn: list[Activity], data: st.DataObject, f: int, g: int) -> None:
    ours, first, second = tuple(drawn), some(data, drawn), some(data, drawn)
    one = scaled(scaled(ours, first, f), second, g)
    assert one == scaled(scaled(ours, second, g), first, f)
    assert scaled(ours, first, 1) == ours


@given(activities(shared=False), st.data(), st.floats(0, 1))
def test_to_take_less_makes_nothing_slower_where_nothing_is_shared(
    drawn: list[Activity], data: st.DataObject, factor: float
) -> None:
    assert makespan(scaled(tuple(drawn), some(data, drawn), factor)) <= makespan(drawn) + 1e-9


@given(activities(), st.floats(0, 1), st.floats(0, 20))
def test_what_is_scaled_stays_above_the_least_unless_it_was_below(
    drawn: list[Activity], factor: float, least_us: float
) -> None:
    changed = scaled(tuple(drawn), names(drawn), factor, least_us)
    for before, after in zip(drawn, changed, strict=True):
        assert min(before.us, least_us) <= after.us <= before.us
        assert after.us in (before.us * factor, before.us, least_us)


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf"), "2", None, True])
def test_what_is_no_factor_is_refused(factor: float) -> None:
    with pytest.raises(OptionError, match="at least 0"):
        scaled(CALLED, ["a"], factor)
    with pytest.raises(OptionError, match="at least 0"):
        fused(CALLED, replace(CALLED[1], us=factor), ["a", "b"])


def test_a_kernel_is_removed_with_the_call_that_launched_it() -> None:
    assert names(removed(CALLED, ["a"])) == ["call b", "b", "call c", "c"]
    assert names(removed(CALLED, ["call a"])) == names(CALLED[1:])
    twice = (*CALLED, Activity("also a", "s1", 1, (("call a", 0.0),), "gpu"))
    assert "call a" in names(removed(twice, ["a"]))
    assert "call a" not in names(removed(twice, ["a", "also a"]))


@given(activities(), st.data())
def test_what_is_left_is_ordered_as_it_was(drawn: list[Activity], data: st.DataObject) -> None:
    gone = some(data, drawn)
    left = removed(tuple(drawn), gone)
    assert not gone & set(names(left))
    assert all(a.queue == HOST for a in drawn if a.name not in {*gone, *names(left)})
    assert orders(left) == among(orders(drawn), names(left))


@given(activities(), st.data())
def test_fused_comes_after_all_and_before_all_that_its_parts_did(
    drawn: list[Activity], data: st.DataObject
) -> None:
    queue = data.draw(st.sampled_from(STREAMS))
    here = [activity for activity in drawn if activity.queue == queue]
    assume(len(here) > 1)
    begin = data.draw(st.integers(0, len(here) - 2))
    parts = here[begin : data.draw(st.integers(begin + 2, len(here)))]
    one = together(parts, sum(part.us for part in parts))
    as_one = dict.fromkeys(names(parts), one.name)
    graph = nx.relabel_nodes(digraph(drawn), as_one)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    if not nx.is_directed_acyclic_graph(graph):
        with pytest.raises(OptionError, match="something between waits for a part"):
            fused(tuple(drawn), one, names(parts))
        return
    result = fused(tuple(drawn), one, names(parts))
    assert orders(result) == among(set(nx.transitive_closure_dag(graph).edges), names(result))
    missing = set(names(drawn)) - set(names(result)) - set(names(parts))
    assert all(activity.queue == HOST for activity in drawn if activity.name in missing)


@given(st.lists(st.tuples(*[st.floats(0.1, 10)] + [st.floats(0, 1)] * 2), min_size=1, max_size=4))
def test_together_is_the_work_of_all(figures: list[tuple[float, float, float]]) -> None:
    parts = [Activity(f"a{i}", "s0", u, (), "gpu", s, b) for i, (u, s, b) in enumerate(figures)]
    one = together(parts, sum(part.us for part in parts))
    assert one.name == "a0"
    assert one.share * one.us == pytest.approx(sum(part.share * part.us for part in parts))
    assert one.bandwidth * one.us == pytest.approx(sum(p.bandwidth * p.us for p in parts))
    assert together(parts, 0.0).share == 0


def test_fused_saves_the_calls_of_all_but_the_first() -> None:
    one = together([CALLED[1], CALLED[3]], 4.0)
    result = fused(CALLED, one, ["a", "b"])
    assert names(result) == ["call a", "a", "call c", "c"]
    assert {a.name: a.us for a in result}["a"] == 4.0


def test_what_is_no_run_of_a_queue_is_not_fused() -> None:
    with pytest.raises(OptionError, match="between them on s0 there is b"):
        fused(CALLED, CALLED[1], ["a", "c"])
    with pytest.raises(OptionError, match="on several queues: host, s0"):
        fused(CALLED, CALLED[0], ["call a", "a"])


@given(activities(), st.data())
def test_what_is_inserted_is_where_it_was_asked_to_be(
    drawn: list[Activity], data: st.DataObject
) -> None:
    ours, before = tuple(drawn), some(data, drawn)
    after = tuple((name, 1.0) for name in sorted(some(data, drawn) - before))
    new = Activity("new", "s0", 3, after, "gpu")
    if any((u, v) in orders(drawn) for u in before for v, _ in after):
        with pytest.raises(OptionError, match="new cannot be there"):
            inserted(ours, new, before)
        return
    result = inserted(ours, new, before)
    kept = orders(result)
    assert orders(drawn) <= kept
    assert {("new", name) for name in before} | {(name, "new") for name, _ in after} <= kept
    assert removed(inserted(ours, replace(new, after=()), ()), ["new"]) == ours


def test_what_waits_for_one_of_its_queue_is_inserted_behind_it() -> None:
    pair = (Activity("call", "host", 1), Activity("a", "s0", 1, (), "gpu"))
    result = inserted(pair, Activity("new", "s0", 1, (("a", 0.0),), "gpu"), ["call"])
    assert names(result) == ["call", "a", "new"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": 7}, {"queue": 5}, {"engine": 5}, {"after": None}, {"after": ("a",)}),
        *({"parts": 5}, {"parts": ("a",)}),
        *({"after": (("a",),)}, {"after": ((["a"], 1.0),)}),
    ],
)
def test_attributes_of_what_is_inserted_are_checked(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(OptionError, match=f"insert: {name}=.* is not valid"):
        inserted(CALLED, replace(Activity("new", "s0", 1), **wrong))


@given(activities(), st.data())
def test_what_is_moved_waits_in_a_circle_for_nothing(
    drawn: list[Activity], data: st.DataObject
) -> None:
    new = Activity("new", "side", 3, (), "gpu")
    ours = inserted(tuple(drawn), new, some(data, drawn))
    try:
        simulate([replace(a, queue="s0") if a is new else a for a in ours])
    except ScheduleError:
        with pytest.raises(OptionError, match="move: they cannot be on s0"):
            moved(ours, ["new"], "s0")
    else:
        simulate(moved(ours, ["new"], "s0"))


def test_a_time_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(OptionError, match=r"at most 1e\+18"):
        scaled(CALLED, ["a"], 1e308)
    with pytest.raises(OptionError, match=r"at most 1e\+18"):
        scaled(scaled(CALLED, ["a"], 1e17), ["a"], 1e17)


def test_what_cannot_be_inserted_is_refused() -> None:
    with pytest.raises(OptionError, match="a exists already"):
        inserted(CALLED, Activity("a", "s0", 1))
    with pytest.raises(OptionError, match="new waits for d, which does not exist"):
        inserted(CALLED, Activity("new", "s0", 1, (("d", 0.0),)))
    with pytest.raises(OptionError, match="at least 0"):
        inserted(CALLED, Activity("new", "s0", -1))
    for delay in (-1.0, math.nan):
        with pytest.raises(OptionError, match=r"delay of new after a is .* at least 0"):
            inserted(CALLED, Activity("new", "s0", 1, (("a", delay),)))
    for share, bandwidth in ((2.0, 0.0), (0.0, -0.5)):
        with pytest.raises(OptionError, match="from 0 to 1"):
            inserted(CALLED, Activity("new", "s0", 1, (), "gpu", share, bandwidth))


@given(activities(), st.data())
def test_what_is_moved_keeps_what_it_waits_for_and_runs_in_the_listed_order(
    drawn: list[Activity], data: st.DataObject
) -> None:
    away = some(data, drawn)
    result = moved(tuple(drawn), away, "s9", "gpu1", crossing_us=0.5)
    assert names(result) == names(drawn)
    for before, after in zip(drawn, result, strict=True):
        is_away = before.name in away
        assert (after.queue, after.engine) == (
            ("s9", "gpu1") if is_away else (before.queue, before.engine)
        )
        assert [name for name, _ in after.after] == [name for name, _ in before.after]
        assert all(d >= e for (_, d), (_, e) in zip(after.after, before.after, strict=True))
    assert starts(result).keys() == starts(drawn).keys()


@given(activities(), st.sampled_from(STREAMS))
def test_to_be_moved_where_one_is_changes_nothing(drawn: list[Activity], queue: str) -> None:
    here = [activity.name for activity in drawn if activity.queue == queue]
    assert moved(tuple(drawn), here, queue, crossing_us=0.5) == tuple(drawn)


def test_behind_one_of_another_queue_it_starts_later_by_an_event() -> None:
    pair = (Activity("a", "s0", 5, (), "gpu"), Activity("b", "s0", 5, (("a", 0.0),), "gpu"))
    assert makespan(moved(pair, ["b"], "s1", crossing_us=0.5)) == 10.5
    assert makespan(moved(pair, ["a", "b"], "s1", crossing_us=0.5)) == 10


@given(activities(shared=False))
def test_without_the_host_the_device_is_no_slower_and_as_ordered(drawn: list[Activity]) -> None:
    result = without_host(tuple(drawn))
    assert names(result) == [activity.name for activity in drawn if activity.queue != HOST]
    assert orders(result) == among(orders(drawn), names(result))
    assert makespan(result) <= makespan(drawn)
    assert without_host(result) == result


def test_without_the_host_what_went_through_it_is_in_order_without_delay() -> None:
    drawn = (
        *CALLED,
        Activity("wait", "host", 2, (("c", 3.0),)),
        Activity("call d", "host", 2, (("wait", 9.0),)),
        Activity("d", "s1", 5, (("call d", 1.0),), "gpu"),
    )
    assert starts(without_host(drawn))["d"] == 15


def test_the_beginning_of_a_trace_is_not_a_call_that_launched_something() -> None:
    loose = (Activity(BEGIN, BEGIN, 0), Activity("a", "s0", 1, ((BEGIN, 4.0),), "gpu"))
    assert names(removed(loose, ["a"])) == [BEGIN]


def test_fused_waits_as_long_as_the_part_that_waits_longest() -> None:
    long = (
        Activity("x", "s1", 5, (), "gpu"),
        Activity("a", "s0", 5, (("x", 9.0),), "gpu"),
        Activity("b", "s0", 5, (("x", 1.0),), "gpu"),
    )
    assert starts(fused(long, together(long[1:], 10.0), ["a", "b"]))["a"] == 14


def test_without_the_host_no_delay_of_its_is_left() -> None:
    assert makespan(CALLED) == 18
    assert makespan(without_host(CALLED)) == 15


@given(activities(), st.data())
def test_what_an_activity_waits_for_is_kept_when_it_is_moved_after_another_is_removed(
    drawn: list[Activity], data: st.DataObject
) -> None:
    """Not the order of a queue alone: each said itself whom it waits for, through the removed."""
    gone = some(data, drawn)
    left = removed(tuple(drawn), gone)
    said: nx.DiGraph[str] = nx.DiGraph()
    said.add_nodes_from(names(drawn))
    said.add_edges_from((name, a.name) for a in drawn for name, _ in a.after)
    apart = tuple(replace(activity, queue=activity.name) for activity in left)
    assert among(set(nx.transitive_closure_dag(said).edges), names(left)) <= orders(apart)


@given(st.permutations(["k0", "k1", "k2"]), st.integers(0, 3))
def test_a_call_stays_as_long_as_one_that_it_launched_in_whatever_order_they_go(
    names: list[str], n: int
) -> None:
    kernels = (Activity(f"k{i}", "s0", 5, (("launch", 0.0),), "gpu") for i in range(3))
    left: tuple[Activity, ...] = (Activity("launch", "host", 50), *kernels)
    for name in names[:n]:
        left = removed(left, {name})
    assert {a.name for a in left} == {"launch", *names[n:]} if n < 3 else not left


MOVED_BEHIND_OTHERS = [
    (
        Activity("first", "s0", 20, (), "gpu"),
        Activity("moved", "s2", 3, (("first", 0.0),), "gpu"),
        Activity("gone", "s2", 1, (("first", 0.0),), "gpu"),
        Activity("last", "s2", 1, (), "gpu"),
    ),
    (
        Activity("first", "s0", 20, (), "gpu"),
        Activity("gone", "s0", 6, (), "gpu"),
        Activity("moved", "s2", 1, (("first", 0.0),), "gpu"),
        Activity("last", "s2", 1, (("gone", 0.0),), "gpu"),
    ),
]


@pytest.mark.parametrize("run", MOVED_BEHIND_OTHERS)
def test_what_went_through_one_taken_out_stays_when_a_neighbour_is_moved(
    run: tuple[Activity, ...],
) -> None:
    for left in (
        moved(removed(run, {"gone"}), {"moved"}, "s3"),
        removed(moved(run, {"moved"}, "s3"), {"gone"}),
    ):
        assert starts(left)["last"] == 20


def test_a_call_stays_for_one_that_says_itself_who_launched_it_and_whom_it_waits_for() -> None:
    launched = ("launch", 0.0)
    run = (
        Activity("launch", "host", 50),
        Activity("k0", "s0", 5, (launched,), "gpu"),
        Activity("waited", "host", 1, (("k0", 0.0),)),
        Activity("gone", "s1", 5, (launched,), "gpu"),
        Activity("k1", "s1", 5, (launched, ("k0", 0.0), ("waited", 0.0), ("gone", 0.0)), "gpu"),
    )
    assert names(removed(removed(run, {"gone"}), {"k0"})) == ["launch", "waited", "k1"]


def test_a_delay_between_kernels_stays_when_the_host_goes() -> None:
    waits = (("gone", 0.0), ("k0", 4.0), ("moved", 4.0), ("waited", 5.0))
    run = (
        Activity("k0", "s1", 10, (), "gpu"),
        Activity("moved", "s1", 0, (), "gpu"),
        Activity("waited", "host", 1, (("k0", 0.0),)),
        Activity("gone", "s0", 2, (), "gpu"),
        Activity("k1", "s2", 3, waits, "gpu"),
    )
    for left in (without_host(removed(run, {"gone"})), removed(without_host(run), {"gone"})):
        assert starts(moved(left, {"moved"}, "s3"))["k1"] == 14
