"""Activities taken out so that what came before them still comes before what came after them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from nimble_fx.errors import ScheduleError
from nimble_fx.simulation.discrete_event import Activity

_Delays = Mapping[str, float]
"""How much later than the ends of others something may start, by their names."""


def bypassed(
    activities: Sequence[Activity], gone: Collection[str], *, keep_delays: bool = True
) -> tuple[Activity, ...]:
    """The activities without some, and with every order between the others that went through them.

    Args:
        activities: all, each queue's in the order in which it runs them.
        gone: the names of those to take out.
        keep_delays: an order that goes through some of them keeps the delays on its way. A delay
            behind one that comes after nothing goes with it.

    Raises:
        ScheduleError: activities wait for each other.
    """
    if not gone:
        return tuple(activities)
    around = _Around(activities, frozenset(gone), keep_delays)
    return tuple(around.kept(a) for a in activities if a.name not in around.gone)


def in_order(activities: Sequence[Activity]) -> list[Activity]:
    """The activities, each behind those that it comes after.

    Raises:
        ScheduleError: activities wait for each other; the message names them.
    """
    before = previous(activities)
    by_name = {activity.name: activity for activity in activities}
    waits = {a.name: [n for n, _ in a.after] for a in activities}
    for name, one_before in before.items():
        waits[name].append(one_before)
    try:
        return [by_name[name] for name in TopologicalSorter(waits).static_order()]
    except CycleError as error:
        raise ScheduleError(
            f"activities wait for each other: {', '.join(error.args[1])}"
        ) from error


def previous(activities: Sequence[Activity]) -> Mapping[str, str]:
    """For each activity that is not the first of its queue, the one before it there."""
    last: dict[str, str] = {}
    found = {}
    for activity in activities:
        if activity.queue in last:
            found[activity.name] = last[activity.queue]
        last[activity.queue] = activity.name
    return found


class _Around:
    """The ways around those that are gone, from the first on.

    What an activity says itself that it waits for is kept apart from what only its queue's order
    tells: an activity that is moved to another queue later on keeps the former.
    """

    def __init__(
        self, activities: Sequence[Activity], gone: frozenset[str], keep_delays: bool
    ) -> None:
        self.gone = gone
        self._keep_delays = keep_delays
        self._previous = previous(activities)
        self._position = {activity.name: i for i, activity in enumerate(activities)}
        self._queue = {activity.name: activity.queue for activity in activities}
        self._kernels = {a.name for a in activities if a.engine is not None}
        self._said: dict[str, _Delays] = {}
        self._all: dict[str, _Delays] = {}
        self._own: dict[str, _Delays] = {}
        for activity in in_order(activities):
            said = self._unsaid(self._through(activity.after, self._said))
            if activity.name in gone:
                self._said[activity.name] = said
                self._all[activity.name] = self._needed(self._before(activity), {})
            else:
                self._own[activity.name] = said

    def kept(self, activity: Activity) -> Activity:
        """One that stays, behind what it now comes after."""
        before = self._previous.get(activity.name)
        if before not in self.gone and not any(name in self.gone for name, _ in activity.after):
            return activity
        own_order = {activity.queue: 0.0}  # it goes without saying
        after = dict(self._own[activity.name])
        for name, delay in self._needed(self._before(activity), own_order).items():
            after[name] = max(after.get(name, 0.0), delay)
        return replace(activity, after=tuple(after.items()))

    def _before(self, activity: Activity) -> _Delays:
        """Those that stay and that it comes after by what it says and by its queue's order."""
        one_before = self._previous.get(activity.name)
        order = () if one_before is None else ((one_before, 0.0),)
        return self._through((*activity.after, *order), self._all)

    def _through(self, waits: Iterable[tuple[str, float]], ways: Mapping[str, _Delays]) -> _Delays:
        """What waits come to when those that are gone stand for what they came after."""
        before: dict[str, float] = {}
        for name, delay in waits:
            for each, more in ways.get(name, {name: 0.0}).items():
                on_the_way = delay + more if name not in self.gone or self._keep_delays else 0.0
                before[each] = max(before.get(each, 0.0), on_the_way)
        return before

    def _unsaid(self, before: _Delays) -> _Delays:
        """Without kernels that another of them says itself that it comes after, as much later.

        Else a host that launches and waits, over and over, would come after ever more of them.
        Calls of the host stay, and say nothing for others: who launched what is read off them, and
        they are taken out without what they delay.
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
        """Without those that one later on their queue, with no less delay, says already."""
        needed: dict[str, float] = {}
        most = dict(known)
        for name in sorted(before, key=self._position.__getitem__, reverse=True):
            queue, delay = self._queue[name], before[name]
            if delay > most.get(queue, -1.0):
                needed[name] = most[queue] = delay
        return dict(reversed(needed.items()))
