"""Lower bounds of a model's time: the sum of its tasks' times, and their longest path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.measuring.task_times import TimedGraph
from nimble_fx.ir.task_graph import TaskGraph


@dataclass(frozen=True)
class Floor:
    """Bounds for schedules of a model's kernels, in seconds, for a forward and its backward.

    Attributes:
        total_seconds: all tasks one after another.
        path_seconds: the longest path of dependent tasks.
        n_tasks: the number of tasks that launch something.
        n_path: the most of them on a path.
    """

    total_seconds: float
    path_seconds: float
    n_tasks: int
    n_path: int

    @property
    def parallelism(self) -> float:
        """Tasks over the longest path: the gain if every kernel is small and takes the same."""
        return self.n_tasks / self.n_path


def floor(graphs: Sequence[TimedGraph]) -> Floor:
    """The floor of graphs that run one after another."""
    return Floor(
        total_seconds=sum(sum(seconds.values()) for _, seconds in graphs),
        path_seconds=sum(longest_path(graph, seconds) for graph, seconds in graphs),
        n_tasks=sum(len(graph.launching) for graph, _ in graphs),
        n_path=sum(
            int(longest_path(graph, dict.fromkeys(seconds, 1.0))) for graph, seconds in graphs
        ),
    )


def longest_path(graph: TaskGraph, cost: Mapping[str, float]) -> float:
    """The cost of the costliest path of tasks that must come one after another."""
    ends: dict[str, float] = {}
    for task in graph.launching:
        ends[task.name] = max((ends[name] for name in task.after), default=0.0) + cost[task.name]
    return max(ends.values(), default=0.0)
