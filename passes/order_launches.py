"""In which order the host enqueues tasks: the critical path first, chain by chain."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nimble_fx.analysis import missing_host_tasks
from nimble_fx.dag import longest_path_from
from nimble_fx.ir import ScalarType, Task, TaskGraph, TupleType

Names = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class OrderLaunches:
    """Puts the tasks in the order in which they are launched.

    After each task comes, of the tasks that it made ready, the one with the longest path still
    ahead, and so on down that path; what is left waiting is taken up last in, first out. So the
    critical branch of a fork is enqueued first, which decides how CUDA maps the branches of a
    graph to hardware queues, and values die soon after they are made. On one stream the program's
    own order stands.

    Requires: streams are assigned; `after` holds the dependencies.
    Ensures: a topological order; random draws and side effects keep program order; a view comes
    right before its first use, a size and an item of a result as soon as they can.

    Before: a, short, long_1, long_2, join
    After:  a, long_1, long_2, short, join
    """

    name = "order-launches"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with its tasks in launch order. Cost: O((tasks + uses) log tasks)."""
        constrained = _constraints(graph)
        if graph.n_streams > 1:
            moving = [task.name for task in graph.tasks if task.name in constrained]
            order = _depth_first(moving, constrained)
        else:
            order = [task.name for task in graph.tasks if task.name in constrained]
        return graph.replace_tasks(_with_host_tasks(graph, order))


def _constraints(graph: TaskGraph) -> dict[str, list[str]]:
    """For each task that launches or is ordered, those of its kind that come earlier.

    What a task uses through views and sizes is followed back to who launches it.
    """
    origins: dict[str, tuple[str, ...]] = {}
    earlier: dict[str, list[str]] = {}
    for task in graph.tasks:
        needed = dict.fromkeys(n for name in task.uses for n in origins.get(name, ()))
        if task.launches or task.ordered:
            earlier[task.name] = list(dict.fromkeys([*task.after, *needed]))
            origins[task.name] = (task.name,)
        else:
            origins[task.name] = tuple(needed)
    in_program_order = sorted((t for t in graph.tasks if t.ordered), key=lambda t: t.index)
    for before, task in pairwise(in_program_order):
        earlier[task.name].append(before.name)
    return earlier


def _depth_first(names: Sequence[str], earlier: Names) -> list[str]:
    """A topological order that follows the longest remaining path as far as it can."""
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


def _with_host_tasks(graph: TaskGraph, order: Iterable[str]) -> Iterator[Task]:
    """The tasks of `order` with the host-only ones put in between them."""
    eager = _eager_host_tasks(graph)
    placed: dict[str, None] = {}

    def place(name: str) -> None:
        queue = deque([name])
        while queue:
            name = queue.popleft()
            placed[name] = None
            for task in eager.get(name, ()):
                ready = all(used in placed for used in task.uses if used in graph.by_name)
                if ready and task.name not in placed and task.name not in queue:
                    queue.append(task.name)

    for task in graph.tasks:
        if _is_eager(task) and not any(name in graph.by_name for name in task.uses):
            place(task.name)
    for name in (*order, *(task.name for task in graph.tasks)):
        if name not in placed:
            for host_task in missing_host_tasks(graph, name, placed):
                place(host_task)
            place(name)
    return map(graph.by_name.__getitem__, placed)


def _eager_host_tasks(graph: TaskGraph) -> dict[str, list[Task]]:
    """For each value, the sizes and items taken of it: waiting would only keep it alive."""
    behind: dict[str, list[Task]] = {}
    types = {task.name: task.type for task in graph.tasks}
    for task in graph.tasks:
        of_tuple = any(isinstance(types.get(name), TupleType) for name in task.uses)
        if of_tuple or _is_eager(task):
            for name in task.uses:
                behind.setdefault(name, []).append(task)
    return behind


def _is_eager(task: Task) -> bool:
    return not task.launches and not task.ordered and isinstance(task.type, ScalarType)
