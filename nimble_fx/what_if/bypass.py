"""Removes activities and keeps the orders between the others that went through them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from nimble_fx.errors import ScheduleError
from nimble_fx.simulation.discrete_event import Activity

_Delays = Mapping[str, float]
"""The activities that one waits for, by name, with the least delays after their ends."""


def bypassed(
    activities: Sequence[Activity], removed: Collection[str], *, keep_delays: bool = True
) -> tuple[Activity, ...]:
    """The activities without some, with all orders between the others that went through these.

    Args:
        activities: all activities, those of each queue in its order.
        removed: the names of those to remove.
        keep_delays: whether an order through removed activities keeps its delays. A delay after a
            removed activity without predecessors is dropped.

    Raises:
        ScheduleError: activities wait for each other.
    """
    if not removed:
        return tuple(activities)
    bypass = _Bypass(activities, frozenset(removed), keep_delays)
    return tuple(bypass.rewired(a) for a in activities if a.name not in bypass.removed)


def topological_order(activities: Sequence[Activity]) -> list[Activity]:
    """The activities, each after those that it waits for and the one before it on its queue.

    Raises:
        ScheduleError: activities wait for each other; the message names them.
    """
    by_name = {activity.name: activity for activity in activities}
    try:
        order = TopologicalSorter(predecessors(activities)).static_order()
        return [by_name[name] for name in order]
    except CycleError as error:
        raise ScheduleError(
            f"activities wait for each other: {', '.join(error.args[1])}"
        ) from error


def predecessors(activities: Sequence[Activity]) -> dict[str, list[str]]:
    """For each activity those that it waits for, then the one before it on its queue."""
    waits = {activity.name: [name for name, _ in activity.after] for activity in activities}
    for name, one_before in previous(activities).items():
        waits[name].append(one_before)
    return waits


def previous(activities: Sequence[Activity]) -> Mapping[str, str]:
    """For each activity that is not the first of its queue, the one before it."""
    last: dict[str, str] = {}
    found = {}
    for activity in activities:
        if activity.queue in last:
            found[activity.name] = last[activity.queue]
        last[activity.queue] = activity.name
    return found


class _Bypass:
    """The orders around removed activities, computed in topological order.

    The explicit waits of an activity (`after`) are kept apart from queue order: an activity that is
    later moved to another queue keeps only the former.
    """

    def __init__(
        self, activities: Sequence[Activity], removed: frozenset[str], keep_delays: bool
    ) -> None:
        self.removed = removed
        self._keep_delays = keep_delays
        self._previous = previous(activities)
        self._position = {activity.name: i for i, activity in enumerate(activities)}
        self._queue = {activity.name: activity.queue for activity in activities}
        self._kernels = {a.name for a in activities if a.engine is not None}
        self._explicit: dict[str, _Delays] = {}
        self._all: dict[str, _Delays] = {}
        self._own: dict[str, _Delays] = {}
        for activity in topological_order(activities):
            explicit = self._without_implied(self._through(activity.after, self._explicit))
            if activity.name in removed:
                self._explicit[activity.name] = explicit
                self._all[activity.name] = self._needed(self._before(activity), {})
            else:
                self._own[activity.name] = explicit

    def rewired(self, activity: Activity) -> Activity:
        """A remaining activity with its new waits."""
        before = self._previous.get(activity.name)
        if before not in self.removed and not any(
            name in self.removed for name, _ in activity.after
        ):
            return activity
        own_order = {activity.queue: 0.0}  # which queue order implies
        after = dict(self._own[activity.name])
        for name, delay in self._needed(self._before(activity), own_order).items():
            after[name] = max(after.get(name, 0.0), delay)
        return replace(activity, after=tuple(after.items()))

    def _before(self, activity: Activity) -> _Delays:
        """The remaining activities that it must follow, by explicit waits and queue order."""
        one_before = self._previous.get(activity.name)
        order = () if one_before is None else ((one_before, 0.0),)
        return self._through((*activity.after, *order), self._all)

    def _through(self, waits: Iterable[tuple[str, float]], paths: Mapping[str, _Delays]) -> _Delays:
        """The waits with removed activities replaced by their own waits."""
        before: dict[str, float] = {}
        for name, delay in waits:
            for each, more in paths.get(name, {name: 0.0}).items():
                total = delay + more if name not in self.removed or self._keep_delays else 0.0
                before[each] = max(before.get(each, 0.0), total)
        return before

    def _without_implied(self, before: _Delays) -> _Delays:
        """The waits without kernels that the explicit waits of another kernel imply.

        Else the waits of a host that launches and synchronizes repeatedly would grow and grow.
        Host calls are kept and imply nothing: they show which call launched a kernel, and `removed`
        edits drop them without their delays.
        """
        if len(before) < 2:
            return before
        delays: dict[str, float] = {}
        for name, delay in before.items():
            for other, more in self._own[name].items() if name in self._kernels else ():
                delays[other] = max(delays.get(other, -1.0), delay + more)
        return {
            name: delay
            for name, delay in before.items()
            if name not in self._kernels or delay > delays.get(name, -1.0)
        }

    def _needed(self, before: _Delays, known: Mapping[str, float]) -> _Delays:
        """The waits without those that a later one on their queue, with no less delay, implies."""
        needed: dict[str, float] = {}
        most = dict(known)
        for name in sorted(before, key=self._position.__getitem__, reverse=True):
            queue, delay = self._queue[name], before[name]
            if delay > most.get(queue, -1.0):
                needed[name] = most[queue] = delay
        return dict(reversed(needed.items()))
