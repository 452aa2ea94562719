"""Edits of activities: each gives new ones and keeps what had to come before what."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import isfinite

from nimble_fx.errors import OptionError, ScheduleError
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.traces.recorded import BEGIN
from nimble_fx.what_if.bypass import bypassed, in_order

Activities = tuple[Activity, ...]


def scaled(
    activities: Activities, names: Collection[str], factor: float, least_us: float = 0.0
) -> Activities:
    """Those named take so many times as long, but none gets below `least_us` by that.

    Raises:
        OptionError: the factor is no number of at least 0.
    """
    check_number("factor", factor)
    if factor == 1:
        return activities
    return tuple(
        replace(a, us=max(a.us * factor, min(a.us, least_us))) if a.name in names else a
        for a in activities
    )


def removed(activities: Activities, names: Collection[str]) -> Activities:
    """Without those named, and without the host's calls that launched nothing else."""
    return bypassed(activities, {*names, *_launches_of(activities, names)})


def fused(activities: Activities, one: Activity, names: Collection[str]) -> Activities:
    """Those named as one, which comes after all that they came after.

    Only the first's call of the host's is left.

    Args:
        activities: all of them.
        one: what they are together: the first of them with other figures, as from `together`.
        names: neighbours on one queue.

    Raises:
        OptionError: they are not neighbours on one queue, or one waits for another through
            something that is not among them; or the time is no number of at least 0.
    """
    check_number("us", one.us)
    parts = [activity for activity in activities if activity.name in names]
    _check_neighbours(activities, parts)
    waits = _merged(wait for part in parts for wait in part.after if wait[0] not in names)
    merged = tuple(
        replace(one, after=waits) if a is parts[0] else _behind(one.name, names, a)
        for a in activities
        if a.name not in names or a is parts[0]
    )
    calls = _launches_of(activities, names) - {name for name, _ in parts[0].after}
    try:
        result = bypassed(merged, calls)
        in_order(result)
    except ScheduleError as error:
        raise OptionError(f"fuse: something between waits for a part: {error}") from error
    return result


def together(parts: Sequence[Activity], us: float) -> Activity:
    """The first of the parts, with a time in which its engine does all of their work."""

    def mean(figure: Callable[[Activity], float]) -> float:
        return min(1.0, sum(figure(part) * part.us for part in parts) / us) if us else 0.0

    share, bandwidth = mean(lambda part: part.share), mean(lambda part: part.bandwidth)
    return replace(parts[0], us=us, share=share, bandwidth=bandwidth)


def inserted(
    activities: Activities, activity: Activity, before: Collection[str] = ()
) -> Activities:
    """With one more, at the end of its queue, or in front of those that now wait for it.

    Raises:
        OptionError: its name is taken, it waits for what there is not, or its time is no number
            of at least 0; or it would wait for itself.
    """
    check_number(f"the time of {activity.name}", activity.us)
    known = {each.name for each in activities}
    missing = [name for name, _ in activity.after if name not in known]
    if activity.name in known or missing:
        what = f"waits for {missing[0]}, which there is not" if missing else "is there already"
        raise OptionError(f"insert: {activity.name} {what}")
    at = min((i for i, a in enumerate(activities) if a.name in before), default=len(activities))
    link = ((activity.name, 0.0),)
    linked = [replace(a, after=a.after + link) if a.name in before else a for a in activities]
    result = (*linked[:at], activity, *linked[at:])
    try:
        in_order(result)
    except ScheduleError as error:
        raise OptionError(f"insert: {activity.name} cannot be there: {error}") from error
    return result


def moved(
    activities: Activities,
    names: Collection[str],
    queue: str,
    engine: str | None = None,
    crossing_us: float = 0.0,
) -> Activities:
    """Those named run on another queue, among what is there, in the order in which all are listed.

    They keep what they wait for, and lose the order of the queue that they were on.

    Args:
        activities: all of them.
        names: which are moved.
        queue: where to.
        engine: what the queue shares with others, if not what the ones moved share.
        crossing_us: how much later one starts behind one of another queue of its engine.
    """
    there = {
        a.name: replace(a, queue=queue, engine=engine or a.engine) if a.name in names else a
        for a in activities
    }
    away = {a.name for a in activities if there[a.name] != a}

    def delayed(activity: Activity) -> Activity:
        after = tuple(
            (name, max(delay, crossing_us) if crosses(there[name], activity) else delay)
            for name, delay in activity.after
        )
        return activity if after == activity.after else replace(activity, after=after)

    def crosses(first: Activity, second: Activity) -> bool:
        touched = first.name in away or second.name in away
        on_device = first.engine is not None and second.engine is not None
        return touched and on_device and first.queue != second.queue

    return tuple(map(delayed, there.values()))


def without_host(activities: Activities) -> Activities:
    """The device's activities alone, enqueued before they begin, as a CUDA graph's are.

    What went through the host, as a kernel launched when another had been waited for, stays in
    order, without delay.
    """
    on_device = {a.queue for a in activities if a.engine is not None}
    gone = {a.name for a in activities if a.queue not in on_device}
    return bypassed(activities, gone, keep_delays=False)


def _launches_of(activities: Iterable[Activity], names: Collection[str]) -> set[str]:
    """The host's calls that launched some of those named and nothing else."""
    listed = list(activities)
    on_device = {a.queue for a in listed if a.engine is not None}
    hosts = {a.name for a in listed if a.queue not in on_device} - {BEGIN}
    launched: dict[str, set[str]] = defaultdict(set)
    for activity in listed:
        if activity.engine is not None:
            for name, _ in activity.after:
                launched[name].add(activity.name)
    return {call for call, kernels in launched.items() if call in hosts and kernels <= set(names)}


def _behind(one: str, names: Collection[str], activity: Activity) -> Activity:
    """An activity that waits for the one, where it waited for its parts."""
    if not any(name in names for name, _ in activity.after):
        return activity
    waits = ((one if name in names else name, delay) for name, delay in activity.after)
    return replace(activity, after=_merged(waits))


def _merged(waits: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Each once, with the longest of its delays."""
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


def check_number(what: str, value: object) -> None:
    """A time or a factor.

    Raises:
        OptionError: it is no number of at least 0.
    """
    if (
        type(value) is bool
        or not isinstance(value, (int, float))
        or not (isfinite(value) and value >= 0)
    ):
        raise OptionError(f"{what} is {value!r}: it takes a number of at least 0")
