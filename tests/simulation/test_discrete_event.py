"""The simulator against an exact simulation with fractions, and invariants of any schedule."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import ScheduleError
from nimble_fx.simulation.discrete_event import Activity, Span, bound_us, simulate
from tests.strategies.activities import HOST, activities


def played(given: list[Activity]) -> dict[str, tuple[Fraction, Fraction]]:
    """When each begins and ends, by keeping what work each has left; exact, and slow."""
    now = Fraction(0)
    starts: dict[str, Fraction] = {}
    ends: dict[str, Fraction] = {}
    left: dict[str, Fraction] = {}
    while len(ends) < len(given):
        happened = True
        while happened:
            happened = False
            for activity in given:
                if left.get(activity.name) == 0:
                    ends[activity.name], happened = now, True
                    del left[activity.name]
                elif activity.name not in starts and _ready(given, activity, ends, now):
                    starts[activity.name], happened = now, True
                    left[activity.name] = Fraction(activity.us)
        running = [activity for activity in given if activity.name in left]
        slow = {a.name: _slowdown(running, a.engine) for a in running}
        steps = [left[name] * slow[name] for name in left]
        steps += [
            ends[name] + Fraction(delay) - now
            for activity in given
            for name, delay in activity.after
            if name in ends and ends[name] + Fraction(delay) > now
        ]
        step = min(steps, default=Fraction(0))
        left = {name: work - step / slow[name] for name, work in left.items()}
        now += step
    return {name: (starts[name], ends[name]) for name in ends}


def _ready(
    given: list[Activity], activity: Activity, ends: dict[str, Fraction], now: Fraction
) -> bool:
    queue = [each.name for each in given if each.queue == activity.queue]
    waits = [*activity.after, *((name, 0.0) for name in queue[: queue.index(activity.name)])]
    return all(name in ends and ends[name] + Fraction(delay) <= now for name, delay in waits)


def _slowdown(running: list[Activity], engine: str | None) -> Fraction:
    sharing = [activity for activity in running if activity.engine == engine is not None]
    share = sum((Fraction(a.share) for a in sharing), Fraction(0))
    return max(Fraction(1), share, sum((Fraction(a.bandwidth) for a in sharing), Fraction(0)))


def spans(given: list[Activity]) -> dict[str, Span]:
    return {span.name: span for span in simulate(given).spans}


@given(activities(max_size=8))
def test_each_begins_and_ends_when_it_does_in_exact_fractions(drawn: list[Activity]) -> None:
    exact = played(drawn)
    for name, span in spans(drawn).items():
        assert (span.start_us, span.end_us) == pytest.approx(tuple(map(float, exact[name])))


@given(activities())
def test_queues_run_one_after_another_and_waits_are_kept_with_their_delays(
    drawn: list[Activity],
) -> None:
    ran = spans(drawn)
    ends: dict[str, float] = defaultdict(float)
    for activity in drawn:
        span = ran[activity.name]
        assert span.queue == activity.queue
        assert span.start_us >= ends[activity.queue]
        ends[activity.queue] = span.end_us
        assert all(span.start_us >= ran[name].end_us + delay for name, delay in activity.after)


@given(activities())
def test_each_takes_its_time_or_longer_if_it_shares(drawn: list[Activity]) -> None:
    for activity in drawn:
        span = spans(drawn)[activity.name]
        took = span.end_us - span.start_us
        assert (
            took == pytest.approx(activity.us)
            if activity.engine is None
            else (took >= activity.us - 1e-9)
        )


@given(activities())
def test_the_critical_path_leads_back_to_the_beginning_without_a_gap(
    drawn: list[Activity],
) -> None:
    run, ran = simulate(drawn), spans(drawn)
    path, by_name = run.critical_path, {activity.name: activity for activity in drawn}
    assert bool(path) == bool(drawn)
    if path:
        assert ran[path[0]].start_us == 0
        assert ran[path[-1]].end_us == run.makespan_us
    for one, following in pairwise(path):
        delays = [delay for name, delay in by_name[following].after if name == one]
        if by_name[one].queue == by_name[following].queue:
            delays.append(0.0)
        gap = ran[following].start_us - ran[one].end_us
        assert any(gap == pytest.approx(delay) for delay in delays)


@given(activities())
def test_nothing_is_below_the_bound(drawn: list[Activity]) -> None:
    run = simulate(drawn)
    assert run.makespan_us >= run.bound_us - 1e-9


@given(activities(delays=False))
def test_the_bound_is_the_longest_path_or_what_an_engine_has_to_do(drawn: list[Activity]) -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for activity in drawn:
        graph.add_edge(f"{activity.name} begins", activity.name, weight=activity.us)
        for name, _ in activity.after:
            graph.add_edge(name, f"{activity.name} begins", weight=0)
    hosts = [activity.name for activity in drawn if activity.queue == HOST]
    graph.add_edges_from(zip(hosts, (f"{n} begins" for n in hosts[1:]), strict=False), weight=0)
    longest = nx.dag_longest_path_length(graph) if drawn else 0
    work = [sum(a.us * a.share for a in drawn), sum(a.us * a.bandwidth for a in drawn)]
    assert bound_us(drawn) == pytest.approx(max(longest, *work))


@given(activities())
def test_one_queue_takes_the_sum_when_nothing_is_delayed(drawn: list[Activity]) -> None:
    alone = [replace(activity, queue="s0", after=()) for activity in drawn]
    assert simulate(alone).makespan_us == pytest.approx(sum(activity.us for activity in drawn))


def test_two_that_fill_the_engine_take_twice_as_long_side_by_side() -> None:
    pair = [Activity(f"a{i}", f"s{i}", 10, engine="gpu", share=1.0) for i in range(2)]
    assert simulate(pair).makespan_us == 20
    assert simulate([replace(a, share=0.5) for a in pair]).makespan_us == 10
    assert simulate([replace(pair[0], engine="gpu1"), pair[1]]).makespan_us == 10


@given(activities())
def test_a_timeline_prints_one_line_an_activity(drawn: list[Activity]) -> None:
    timeline = simulate(drawn)
    header, *lines = str(timeline).splitlines()
    assert header.split() == ["activity", "queue", "start", "us", "end", "us", "blocked", "by"]
    for line, span in zip(lines, timeline.spans, strict=True):
        assert line.startswith(f"{span.name} ")
        assert f" {span.queue} " in line
        assert f" {span.end_us:.1f}" in line


def test_nothing_takes_no_time() -> None:
    run = simulate([])
    assert (run.makespan_us, run.bound_us, run.critical_path) == (0.0, 0.0, ())


@given(activities(max_size=6), st.data())
def test_a_circle_of_waits_is_refused_and_its_members_named(
    drawn: list[Activity], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, 4))
    circle = [Activity(f"c{i}", f"q{i}", 1, ((f"c{(i + 1) % n}", 0.0),)) for i in range(n)]
    with pytest.raises(ScheduleError, match=r"wait for each other, among them c\d"):
        simulate([*drawn, *circle])
    with pytest.raises(ScheduleError, match=r"wait for each other, among them c\d"):
        bound_us([*drawn, *circle])


def test_an_order_of_a_queue_against_a_wait_is_refused() -> None:
    with pytest.raises(ScheduleError, match="wait for each other"):
        simulate([Activity("a", "s0", 1, (("b", 0.0),)), Activity("b", "s0", 1)])


def test_a_wait_for_what_there_is_not_is_refused() -> None:
    with pytest.raises(ScheduleError, match="a waits for b, which does not exist"):
        simulate([Activity("a", "s0", 1, (("b", 0.0),))])


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ScheduleError, match="two activities with the name a"):
        simulate([Activity("a", "s0", 1), Activity("a", "s1", 1)])


def test_twenty_thousand_activities_run() -> None:
    many = [
        Activity(f"a{i}", f"s{i % 32}", 1, ((f"a{i - 7}", 0.5),) if i > 6 else (), "gpu", 0.1, 0.1)
        for i in range(20_000)
    ]
    run = simulate(many)
    assert len(run.spans) == len(many)
    assert run.makespan_us >= run.bound_us >= 2000
