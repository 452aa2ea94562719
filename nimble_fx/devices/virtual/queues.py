"""Queues of kernels on streams, run in any order that streams and events allow."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

Kernel = Callable[[], None]
"""The kernel of a launch: it runs some time after the host launched it."""

Choose = Callable[[Sequence[int]], int]
"""Picks the next stream to run a kernel of, among those that could."""


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A point in a queue at which an event was recorded.

    Attributes:
        stream: the stream of the queue.
        position: the number of steps of the queue before it.
    """

    stream: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A step that blocks its stream until a mark has been passed."""

    mark: Mark


Step = Kernel | Mark | Wait


class Queues:
    """The queued steps of all streams. Nothing runs until `run`."""

    def __init__(self) -> None:
        self._steps: dict[int, list[Step]] = {}
        self._before_next: dict[int, list[Kernel]] = {}

    def __bool__(self) -> bool:
        """Whether any step is queued."""
        return any(self._steps.values())

    def launch(self, stream: int, kernel: Kernel) -> None:
        """Adds a kernel to a stream's queue."""
        steps = self._steps.setdefault(stream, [])
        steps += [*self._before_next.pop(stream, ()), kernel]

    def launch_before_next(self, stream: int, kernel: Kernel) -> None:
        """Adds a kernel right before the next one that is launched on the stream."""
        self._before_next.setdefault(stream, []).append(kernel)

    def mark(self, stream: int) -> Mark:
        """Marks the current end of a stream's queue."""
        steps = self._steps.setdefault(stream, [])
        mark = Mark(stream, len(steps))
        if steps:  # else it is already passed
            steps.append(mark)
        return mark

    def wait(self, stream: int, mark: Mark) -> None:
        """Makes later kernels of a stream wait for a mark."""
        self._steps.setdefault(stream, []).append(Wait(mark))

    def clear(self) -> None:
        """Drops all steps."""
        self._steps.clear()
        self._before_next.clear()

    def take(self) -> "Queues":
        """Moves all steps to new queues, which are returned."""
        taken = Queues()
        taken._steps, taken._before_next = self._steps, self._before_next
        self._steps, self._before_next = {}, {}
        return taken

    def run(self, choose: Choose) -> None:
        """Runs all kernels: each stream's in order, none before the marks that it waits for.

        Marks that are not in these queues have been passed. Cost: O(kernels x streams).

        Args:
            choose: picks the order.
        """
        left = {stream: deque(steps) for stream, steps in self._steps.items()}
        ahead = {step for steps in left.values() for step in steps if isinstance(step, Mark)}
        while True:
            _pass_marks(left, ahead)
            ready = [s for s, steps in left.items() if steps and callable(steps[0])]
            if not ready:
                return
            kernel = left[choose(ready)].popleft()
            if callable(kernel):
                kernel()

    def unjoined(self, origin: int) -> set[int]:
        """The streams with steps that do not happen before the end of `origin`."""
        ends = {stream: len(steps) for stream, steps in self._steps.items()}
        seen = dict.fromkeys(ends, 0)
        to_see = [(origin, ends.get(origin, 0))]
        while to_see:
            stream, end = to_see.pop()
            for step in self._steps.get(stream, [])[seen.get(stream, 0) : end]:
                if isinstance(step, Wait):
                    to_see.append((step.mark.stream, step.mark.position))
            seen[stream] = max(seen.get(stream, 0), end)
        return {
            stream
            for stream, steps in self._steps.items()
            if any(not isinstance(step, Mark) for step in steps[seen[stream] :])
        }


def _pass_marks(left: Mapping[int, deque[Step]], ahead: set[Mark]) -> None:
    """Advances each stream to its next kernel, as far as waits allow."""
    moved = True
    while moved:
        moved = False
        for steps in left.values():
            while steps:
                step = steps[0]
                if isinstance(step, Mark):
                    ahead.discard(step)
                elif not isinstance(step, Wait) or step.mark in ahead:
                    break
                steps.popleft()
                moved = True


def at_random(random: Random) -> Choose:
    """Picks any stream, with equal probabilities."""
    return random.choice


def depth_first(random: Random) -> Choose:
    """Picks one stream as long as it is ready, then another."""
    current = -1

    def choose(ready: Sequence[int]) -> int:
        nonlocal current
        current = current if current in ready else random.choice(ready)
        return current

    return choose


def most_delayed(random: Random) -> Choose:
    """Picks streams by random priorities: the lowest runs only when no other can.

    From time to time the stream of the highest priority gets the lowest, so that any kernel may be
    the delayed one: probabilistic concurrency testing (Burckhardt et al., 2010).
    """
    priorities: dict[int, float] = {}

    def choose(ready: Sequence[int]) -> int:
        for stream in ready:
            priorities.setdefault(stream, random.random())
        first = max(ready, key=priorities.__getitem__)
        if random.random() < _DEMOTION_PROBABILITY:
            priorities[first] = -random.random()
        return first

    return choose


_DEMOTION_PROBABILITY = 1 / 16

ORDERS = (at_random, depth_first, most_delayed)
