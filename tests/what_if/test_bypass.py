"""Removed activities leave all orders and delays between the others, and no more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import ScheduleError
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.what_if.bypass import bypassed, topological_order
from nimble_fx.what_if.edits import scaled
from tests.strategies.activities import activities
from tests.support.activity_orders import among, makespan, orders, starts


def some(data: st.DataObject, drawn: list[Activity]) -> set[str]:
    return {activity.name for activity in drawn if data.draw(st.booleans())}


@given(activities(), st.data(), st.booleans())
def test_the_others_are_ordered_as_they_were(
    drawn: list[Activity], data: st.DataObject, keep_delays: bool
) -> None:
    gone = some(data, drawn)
    left = bypassed(drawn, gone, keep_delays=keep_delays)
    names = [activity.name for activity in left]
    assert names == [activity.name for activity in drawn if activity.name not in gone]
    assert orders(left) == among(orders(drawn), names)


@given(activities(shared=False), st.data())
def test_the_others_begin_when_they_would_if_the_ones_taken_out_took_no_time(
    drawn: list[Activity], data: st.DataObject
) -> None:
    """As in a trace, all come after one beginning, which stays: delays count from there."""
    begin = Activity("begin", "begin", 0)
    behind = [replace(a, after=a.after or ((begin.name, 0.0),)) for a in drawn]
    gone, rooted = some(data, drawn), (begin, *behind)
    without, instant = starts(bypassed(rooted, gone)), starts(scaled(rooted, gone, 0))
    assert without == {name: instant[name] for name in without}


@given(activities(shared=False), st.data(), st.booleans())
def test_taking_out_makes_nothing_slower_where_nothing_is_shared(
    drawn: list[Activity], data: st.DataObject, keep_delays: bool
) -> None:
    left = bypassed(drawn, some(data, drawn), keep_delays=keep_delays)
    assert makespan(left) <= makespan(drawn)


def test_where_processors_are_shared_taking_one_out_may_slow_the_rest() -> None:
    """Graham's anomaly: what then starts earlier takes processors from what matters."""
    drawn = [
        Activity("holds back", "s1", 10),
        Activity("matters", "s0", 10, engine="gpu", share=1.0),
        Activity("does not", "s1", 9, engine="gpu", share=1.0),
        Activity("end", "s0", 10),
    ]
    assert makespan(drawn) == 20
    assert makespan(bypassed(drawn, {"holds back"})) == 29


@given(activities(), st.data())
def test_one_by_one_or_all_at_once_is_the_same(drawn: list[Activity], data: st.DataObject) -> None:
    first, second = some(data, drawn), some(data, drawn)
    one_by_one = bypassed(bypassed(drawn, first), second - first)
    assert starts(one_by_one) == starts(bypassed(drawn, first | second))


@given(activities())
def test_taking_out_nothing_changes_nothing(drawn: list[Activity]) -> None:
    assert bypassed(drawn, set()) == tuple(drawn)


def test_taking_out_a_whole_queue_that_launched_another_does_not_grow() -> None:
    """Each of the device's waits once for what began the host's queue, not for all before it."""
    n = 2000
    calls = [Activity(f"call{i}", "host", 1) for i in range(n)]
    kernels = [Activity(f"k{i}", "s0", 1, ((f"call{i}", 0.0),), "gpu") for i in range(n)]
    left = bypassed([*calls, *kernels], {kernel.name for kernel in kernels[:-1]})
    assert len(left[-1].after) == 1


def test_taking_out_a_host_that_launches_and_waits_does_not_grow() -> None:
    """Each kernel waits for the last one before it, not for all before it."""
    n, drawn = 500, list[Activity]()
    for i in range(n):
        launched = ((f"waited{i - 1}", 1.0),) if i else ()
        drawn.append(Activity(f"call{i}", "host", 1, launched))
        drawn.append(Activity(f"k{i}", "s0", 1, ((f"call{i}", 0.0),), "gpu"))
        drawn.append(Activity(f"waited{i}", "host", 1, (*launched, (f"k{i}", 0.0))))
    gone = {activity.name for activity in drawn if activity.queue == "host"}
    left = bypassed(drawn, gone, keep_delays=False)
    assert [activity.name for activity in left] == [f"k{i}" for i in range(n)]
    assert all(len(activity.after) <= 1 for activity in left)


def test_of_a_queue_one_earlier_counts_if_its_delay_reaches_further() -> None:
    drawn = [
        Activity("first", "s0", 1),
        Activity("second", "s0", 1),
        Activity("gone", "s1", 1, (("first", 9.0), ("second", 0.0))),
        Activity("last", "s1", 1),
    ]
    assert starts(bypassed(drawn, {"gone"}))["last"] == 10


def test_a_circle_is_refused_and_named() -> None:
    circle = [Activity("a", "s0", 1, (("b", 0.0),)), Activity("b", "s1", 1, (("a", 0.0),))]
    with pytest.raises(ScheduleError, match=r"wait for each other: \w, \w"):
        topological_order(circle)
