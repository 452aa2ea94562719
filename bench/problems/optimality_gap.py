"""The distances of schedules from the shortest ones: rows of results, and their medians."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

CRITICAL_PATH = "critical-path"


@dataclass(frozen=True)
class DistanceRow:
    """One scheduling problem, on a device with a number of streams.

    Attributes:
        name: the problem's name.
        n_tasks: the number of launching tasks.
        n_streams: the device's number of streams.
        best_us: the time of the best schedule that was found, if tasks do not slow each other down.
        bound_us: a lower bound; equal to `best_us` if that is proven to be the shortest.
        alone_us: the time of each policy's schedule, with the same costs.
        sharing_bound_us: a lower bound if tasks slow each other down: the longest path or all work.
        sharing_us: the time of each policy's schedule if tasks slow each other down.
    """

    name: str
    n_tasks: int
    n_streams: int
    best_us: float
    bound_us: float
    alone_us: Mapping[str, float]
    sharing_bound_us: float
    sharing_us: Mapping[str, float]

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "DistanceRow":
        """The row that JSON was made from."""
        return DistanceRow(**plain)

    @property
    def proven(self) -> bool:
        """Whether the best schedule that was found is the shortest."""
        return self.best_us == self.bound_us

    def distance(self, policy: str) -> float:
        """How much longer the policy's schedule is than the shortest, relative to that.

        If the shortest is not known, relative to the bound: the true distance is less.
        """
        return self.alone_us[policy] / self.bound_us - 1

    def distance_from_best(self, policy: str) -> float:
        """How much longer it is than the best schedule that was found, relative to that."""
        return self.alone_us[policy] / self.best_us - 1

    def distance_sharing(self, policy: str) -> float:
        """How much longer it is than the bound if tasks slow each other down, relative to that."""
        return self.sharing_us[policy] / self.sharing_bound_us - 1


def median_distance(rows: Iterable[DistanceRow], policy: str) -> float:
    """The median of a policy's distances from the shortest schedules."""
    return median(row.distance(policy) for row in rows)


def distance_cells(rows: Sequence[DistanceRow]) -> tuple[list[str], list[list[str]]]:
    """A table of all rows: its header, and a row for each policy and number of streams."""
    header = ["", "median", "worst", "worst, to best found", "median, sharing", "worst, sharing"]
    body = []
    for n_streams in sorted({row.n_streams for row in rows}):
        some = [row for row in rows if row.n_streams == n_streams]
        for policy in some[0].alone_us:
            alone = [row.distance(policy) for row in some]
            sharing = [row.distance_sharing(policy) for row in some]
            best = max(row.distance_from_best(policy) for row in some)
            figures = [median(alone), max(alone), best, median(sharing), max(sharing)]
            body.append([f"{n_streams} streams, {policy}", *(f"{x:.1%}" for x in figures)])
    return header, body
