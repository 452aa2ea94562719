"""Orders the launches of tasks: the critical path first, chain by chain."""

from collections.abc import Iterable
from dataclasses import dataclass

from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import (
    Earlier,
    ReadySet,
    earlier_tasks,
    in_launch_order,
    upward_rank,
)


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
        """The graph with its tasks in launch order. Cost: O((tasks + edges) log tasks)."""
        earlier = earlier_tasks(graph)
        return in_launch_order(graph, _depth_first(earlier) if graph.n_streams > 1 else earlier)


def _depth_first(earlier: Earlier) -> list[str]:
    """A topological order that follows the longest remaining path as far as possible."""
    ahead = upward_rank(earlier, dict.fromkeys(earlier, 1.0))
    number = {name: i for i, name in enumerate(earlier)}
    ready, stack, order = ReadySet(earlier), list[str](), list[str]()

    def push(names: Iterable[str]) -> None:
        stack.extend(sorted(names, key=lambda name: (ahead[name], -number[name])))

    push(ready.first())
    while stack:
        order.append(stack.pop())
        push(ready.after(order[-1]))
    return order
