"""Keeps allocations without a kernel, such as `torch.empty`, from opening streams."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.scheduling.launch_order import in_launch_order
from nimble_fx.torch_internals.operators import only_allocates


@dataclass(frozen=True)
class ChainAllocations:
    """Makes each allocation the only predecessor of the first task that uses its result.

    An allocation depends on nothing, so that maximum concurrency would give it a stream, and its
    user a wait. But it runs no kernel, and it takes memory of the stream that it is on.

    Requires: a traced graph: in program order, `after` has the dependencies.
    Ensures: the same tasks, in a topological order; an allocation depends on what its first user
    depended on, so that the graph is as wide as without allocations. An allocation that no task
    uses follows the last task.

    Before: relu -> kernel, empty -> kernel    (width 2)
    After:  relu -> empty -> kernel            (width 1)
    """

    name = "chain-allocations"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with allocations moved and chained. Cost: O(tasks + uses)."""
        if not any(only_allocates(task.target) for task in graph.launching):
            return graph
        chained = {task.name: task for task in _chained(graph)}
        tasks = [chained.get(task.name, task) for task in graph.tasks]
        return in_launch_order(graph.replace_tasks(tasks), chained)


def _chained(graph: TaskGraph) -> Iterator[Task]:
    """The launching and ordered tasks, each after the allocations that nothing before it needs."""
    unplaced: dict[str, Task] = {}
    needed: dict[str, dict[str, None]] = {}
    last: tuple[str, ...] = ()
    for task in graph.tasks:
        names = {n: None for used in task.uses for n in needed.get(used, ()) if n in unplaced}
        if only_allocates(task.target):
            needed[task.name] = names | {task.name: None}
            unplaced[task.name] = task
        elif task.launches or task.ordered:
            own = [*map(unplaced.pop, names), task]
            others = dict.fromkeys(n for each in own for n in each.after if n not in names)
            yield from _chain(own, tuple(others))
            last = (task.name,) if task.launches else last
        else:
            needed[task.name] = names
    yield from _chain(unplaced.values(), last)


def _chain(tasks: Iterable[Task], after: tuple[str, ...]) -> Iterator[Task]:
    """The tasks, the first after those of `after`, and each other one after the one before."""
    for task in tasks:
        yield task.updated(after=after)
        after = (task.name,)
