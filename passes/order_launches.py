"""Orders the launches of tasks: the critical path first, chain by chain."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nimble_fx.ir.bitset_dag import longest_path_from
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import Earlier, earlier_tasks, in_launch_order


@dataclass(frozen=True)
class OrderLaunches:
    """Sets the launch order of tasks, depth first along the longest paths.

    Each task is followed by the task with the longest remaining path among those that it made
    ready; the other ready tasks come later, last in, first out. So the critical branch of a fork is
    enqueued first, which decides how CUDA maps the branches of a graph to hardware queues, and
    values are freed soon after they are defined. On one stream, program order stays.

    Requires: streams are assigned; `after` has the dependencies.
    Ensures: a topological order; random draws and side effects keep program order; a view comes
    right before its first use, a size or an item of a result as soon as possible.

    Before: a, short, long_1, long_2, join
    After:  a, long_1, long_2, short, join
    """

    name = "order-launches"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with its tasks in launch order. Cost: O((tasks + uses) log tasks)."""
        earlier = earlier_tasks(graph)
        if graph.n_streams > 1:
            names = [task.name for task in graph.tasks if task.name in earlier]
            order = _depth_first(names, earlier)
        else:
            order = [task.name for task in graph.tasks if task.name in earlier]
        return in_launch_order(graph, order)


def _depth_first(names: Sequence[str], earlier: Earlier) -> list[str]:
    """A topological order that follows the longest remaining path as far as possible."""
    position = {name: i for i, name in enumerate(names)}
    rows = [0] * len(names)
    for name in names:
        for before in earlier[name]:
            rows[position[before]] |= 1 << position[name]
    ahead = longest_path_from(rows)
    later: dict[str, list[str]] = {name: [] for name in names}
    missing = {name: len(set(earlier[name])) for name in names}
    for name in names:
        for before in set(earlier[name]):
            later[before].append(name)

    def least_urgent_first(ready: Iterable[str]) -> list[str]:
        return sorted(ready, key=lambda name: (ahead[position[name]], -position[name]))

    stack = least_urgent_first(name for name in names if not missing[name])
    order = []
    while stack:
        order.append(stack.pop())
        for name in later[order[-1]]:
            missing[name] -= 1
        stack += least_urgent_first(n for n in later[order[-1]] if not missing[n])
    return order
