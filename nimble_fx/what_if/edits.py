"""Edits of activities: each returns new activities and keeps their dependencies."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from nimble_fx.errors import OptionError, ScheduleError
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.traces.recorded import BEGIN
from nimble_fx.what_if.bypass import bypassed, predecessors, topological_order

Activities = tuple[Activity, ...]


def scaled(
    activities: Activities, names: Collection[str], factor: float, least_us: float = 0.0
) -> Activities:
    """The activities with the times of those named scaled, but not below `least_us`.

    Raises:
        OptionError: the factor is not a number of at least 0.
    """
    check_number("factor", factor)
    if factor == 1:
        return activities
    most = max((a.us for a in activities if a.name in names), default=0.0)
    check_number(f"a time of {most} us, {factor} times", most * factor)
    return tuple(
        replace(a, us=max(a.us * factor, min(a.us, least_us))) if a.name in names else a
        for a in activities
    )


def removed(activities: Activities, names: Collection[str]) -> Activities:
    """The activities without those named, and without host calls that launched nothing else."""
    return bypassed(activities, {*names, *_launches_of(activities, names)})


def fused(activities: Activities, one: Activity, names: Collection[str]) -> Activities:
    """The activities with those named replaced by one, which waits for all that they waited for.

    Of their host calls only the first's is kept.

    Args:
        activities: all activities.
        one: the fused activity: the first of them with other figures, as from `together`.
        names: neighbours on one queue.

    Raises:
        OptionError: they are not neighbours on one queue, one waits for another through an activity
            that is not among them, or the time is not a number of at least 0.
    """
    check_number("us", one.us)
    parts = [activity for activity in activities if activity.name in names]
    _check_neighbours(activities, parts)
    waits = _merged(wait for part in parts for wait in part.after if wait[0] not in names)
    merged = tuple(
        replace(one, after=waits) if a is parts[0] else _waiting_for(one.name, names, a)
        for a in activities
        if a.name not in names or a is parts[0]
    )
    calls = _launches_of(activities, names) - {name for name, _ in parts[0].after}
    with _acyclic("fuse: something between waits for a part"):
        result = bypassed(merged, calls)
        topological_order(result)
    return result


def together(parts: Sequence[Activity], us: float) -> Activity:
    """The first of the parts, with the given time and all of their work."""

    def mean(figure: Callable[[Activity], float]) -> float:
        return min(1.0, sum(figure(part) * part.us for part in parts) / us) if us else 0.0

    share, bandwidth = mean(lambda part: part.share), mean(lambda part: part.bandwidth)
    named = tuple([name for part in parts for name in part.parts or (part.name,)])
    return replace(parts[0], us=us, share=share, bandwidth=bandwidth, parts=named)


def inserted(
    activities: Activities, activity: Activity, before: Collection[str] = ()
) -> Activities:
    """The activities with one more: on its queue before all that follow `before`, or at the end.

    Raises:
        OptionError: its name is taken, it waits for one that does not exist or that follows it, or
            an attribute is not valid: a time must be a number of at least 0, a share one from 0
            to 1.
    """
    _check_types(activity)
    check_number(f"the time of {activity.name}", activity.us)
    for name, delay in activity.after:
        check_number(f"the delay of {activity.name} after {name}", delay)
    for share in (activity.share, activity.bandwidth):
        check_number(f"the share and the bandwidth of {activity.name}", share, most=1)
    known = {each.name for each in activities}
    missing = [name for name, _ in activity.after if name not in known]
    if activity.name in known or missing:
        what = f"waits for {missing[0]}, which does not exist" if missing else "exists already"
        raise OptionError(f"insert: {activity.name} {what}")
    later = _following(activities, before)
    places = (i for i, a in enumerate(activities) if a.queue == activity.queue and a.name in later)
    at = min(places, default=len(activities))
    link = ((activity.name, 0.0),)
    linked = [replace(a, after=a.after + link) if a.name in before else a for a in activities]
    result = (*linked[:at], activity, *linked[at:])
    with _acyclic(f"insert: {activity.name} cannot be there"):
        topological_order(result)
    return result


def _check_types(activity: Activity) -> None:
    for what, name in (("name", activity.name), ("queue", activity.queue)):
        if not isinstance(name, str):
            raise OptionError(f"insert: {what}={name!r:.99} is not valid; it takes text")
    if activity.engine is not None and not isinstance(activity.engine, str):
        raise OptionError(f"insert: engine={activity.engine!r:.99} is not valid; it takes text")
    if activity.parts:
        raise OptionError(f"insert: parts={activity.parts!r:.99} is not valid; `fuse` sets it")
    after = activity.after
    if not isinstance(after, (tuple, list)) or not all(
        isinstance(wait, (tuple, list)) and len(wait) == 2 and isinstance(wait[0], str)
        for wait in after
    ):
        raise OptionError(
            f"insert: after={after!r:.99} is not valid; it takes pairs of a name and a delay"
        )


@contextmanager
def _acyclic(what: str) -> Iterator[None]:
    """Raises an OptionError for activities that wait for each other."""
    try:
        yield
    except ScheduleError as error:
        raise OptionError(f"{what}: {error}") from error


def _following(activities: Activities, names: Collection[str]) -> set[str]:
    """The named activities and all that wait for one of them, directly or through others."""
    found, waits = set(names), predecessors(activities)
    for activity in topological_order(activities):
        if not found.isdisjoint(waits[activity.name]):
            found.add(activity.name)
    return found


def moved(
    activities: Activities,
    names: Collection[str],
    queue: str,
    engine: str | None = None,
    crossing_us: float = 0.0,
) -> Activities:
    """The activities with those named on another queue, in the order of the list.

    They keep their explicit waits, and lose the order of their former queue.

    Args:
        activities: all activities.
        names: those to move.
        queue: the new queue.
        engine: the engine of the queue; None if it is that of the moved activities.
        crossing_us: the delay of a wait for an activity on another queue of the same engine.

    Raises:
        OptionError: in the order of the list, one would wait for an activity that follows it.
    """
    placed = {
        a.name: replace(a, queue=queue, engine=engine or a.engine) if a.name in names else a
        for a in activities
    }
    changed = {a.name for a in activities if placed[a.name] != a}

    def delayed(activity: Activity) -> Activity:
        after = tuple(
            (name, max(delay, crossing_us) if crosses(placed[name], activity) else delay)
            for name, delay in activity.after
        )
        return activity if after == activity.after else replace(activity, after=after)

    def crosses(first: Activity, second: Activity) -> bool:
        is_changed = first.name in changed or second.name in changed
        on_device = first.engine is not None and second.engine is not None
        return is_changed and on_device and first.queue != second.queue

    result = tuple(map(delayed, placed.values()))
    with _acyclic(f"move: they cannot be on {queue} in the order of the activities"):
        topological_order(result)
    return result


def without_host(activities: Activities) -> Activities:
    """The device's activities alone, as in a CUDA graph, which enqueues all before they start.

    Orders that went through the host, such as a launch after a synchronization, are kept without
    delay.
    """
    on_device = {a.queue for a in activities if a.engine is not None}
    on_host = {a.name for a in activities if a.queue not in on_device}
    return bypassed(activities, on_host, keep_delays=False)


def _launches_of(activities: Iterable[Activity], names: Collection[str]) -> set[str]:
    """The host calls that launched some of those named and nothing else."""
    listed = list(activities)
    on_device = {a.queue for a in listed if a.engine is not None}
    hosts = {a.name for a in listed if a.queue not in on_device} - {BEGIN}
    launched: dict[str, set[str]] = defaultdict(set)
    for activity in listed:
        if activity.engine is not None:
            for name, _ in activity.after:
                launched[name].add(activity.name)
    return {call for call, kernels in launched.items() if call in hosts and kernels <= set(names)}


def _waiting_for(one: str, names: Collection[str], activity: Activity) -> Activity:
    """The activity with waits for fused parts replaced by a wait for the fused one."""
    if not any(name in names for name, _ in activity.after):
        return activity
    waits = ((one if name in names else name, delay) for name, delay in activity.after)
    return replace(activity, after=_merged(waits))


def _merged(waits: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The waits without repetitions, each with its longest delay."""
    delays: dict[str, float] = {}
    for name, delay in waits:
        delays[name] = max(delays.get(name, 0.0), delay)
    return tuple(delays.items())


def _check_neighbours(activities: Sequence[Activity], parts: Sequence[Activity]) -> None:
    queues = dict.fromkeys(part.queue for part in parts)
    if len(queues) > 1:
        raise OptionError(f"fuse: they are on several queues: {', '.join(queues)}; move them first")
    on_queue = [activity.name for activity in activities if activity.queue in queues]
    first, last = (on_queue.index(part.name) for part in (parts[0], parts[-1]))
    between = set(on_queue[first : last + 1]) - {part.name for part in parts}
    if between:
        named = ", ".join(name for name in on_queue if name in between)
        raise OptionError(f"fuse: between them on {parts[0].queue} there is {named}")


MAX_US = 1e18
"""The longest time, in microseconds, so that sums of times are finite."""


def check_number(what: str, value: object, most: float = MAX_US) -> None:
    """Checks a time, a factor or a share.

    Raises:
        OptionError: it is not a number of at least 0, and of at most `most`.
    """
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
        limits = f"of at least 0, and at most {most}" if most == MAX_US else f"from 0 to {most}"
        raise OptionError(f"{what} is {value!r:.99}: it takes a number {limits}")
