"""The constraints of every launch order, and the places of host-only tasks in it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise

from nimble_fx.ir.dependencies import unplaced_host_tasks
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.ir.types import ScalarType, TupleType

Earlier = Mapping[str, Sequence[str]]
"""For each task of a launch order, the tasks that must be launched before it."""


def earlier_tasks(graph: TaskGraph) -> dict[str, list[str]]:
    """For each launching or ordered task, such tasks that must be launched before it.

    Uses through views and sizes count as uses of the tasks that those come from. Random draws and
    side effects keep program order.
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


class ReadySet:
    """Topological sorting step by step: the tasks whose predecessors have all been taken."""

    def __init__(self, earlier: Earlier) -> None:
        self._sorter = TopologicalSorter(earlier)
        self._sorter.prepare()

    def first(self) -> Iterable[str]:
        """The tasks without predecessors."""
        return self._sorter.get_ready()

    def after(self, name: str) -> Iterable[str]:
        """The tasks that become ready by taking `name`."""
        self._sorter.done(name)
        return self._sorter.get_ready()


def upward_rank(earlier: Earlier, us: Mapping[str, float]) -> dict[str, float]:
    """For each task, the microseconds of the longest path that begins with it.

    The "upward rank" of list scheduling, without communication, which costs more than its task only
    where tasks are tiny (Topcuoglu, Hariri, Wu: "Performance-effective and low-complexity task
    scheduling for heterogeneous computing", IEEE TPDS 13(3), 2002).

    Args:
        earlier: the result of `earlier_tasks`, in a topological order.
        us: the duration of each task; 0 for tasks that are not in it.
    """
    ahead = {name: us.get(name, 0.0) for name in earlier}
    for name in reversed(list(earlier)):
        for before in earlier[name]:
            ahead[before] = max(ahead[before], us.get(before, 0.0) + ahead[name])
    return ahead


def in_launch_order(graph: TaskGraph, order: Iterable[str]) -> TaskGraph:
    """The graph with its tasks in `order`, and host-only tasks placed between them.

    A view comes right before its first use; a size or an item of a result as soon as possible, and
    the items of a result in their order.

    Args:
        graph: the tasks.
        order: the names of `earlier_tasks`, in a topological order.
    """
    eager = _eager_host_tasks(graph)
    placed: dict[str, None] = {}

    def place(name: str) -> None:
        queue = deque([name])
        while queue:
            name = queue.popleft()
            placed[name] = None
            for task in eager.get(name, ()):
                ready = all(used in placed for used in task.uses if used in graph.by_name)
                if ready and task.name not in placed:
                    queue.append(task.name)

    for task in graph.tasks:
        if _is_eager(task) and not any(name in graph.by_name for name in task.uses):
            place(task.name)
    for name in (*order, *(task.name for task in graph.tasks)):
        if name not in placed:
            for host_task in unplaced_host_tasks(graph, name, placed):
                place(host_task)
            place(name)
    return graph.replace_tasks(map(graph.by_name.__getitem__, placed))


def _eager_host_tasks(graph: TaskGraph) -> dict[str, list[Task]]:
    """For each value, its sizes and items: placing them later would only keep it alive longer."""
    users: dict[str, list[Task]] = {}
    types = {task.name: task.type for task in graph.tasks}
    for task in graph.tasks:
        of_tuple = any(isinstance(types.get(name), TupleType) for name in task.uses)
        if of_tuple or _is_eager(task):
            for name in task.uses:
                users.setdefault(name, []).append(task)
    return {name: sorted(each, key=_position) for name, each in users.items()}


def _position(task: Task) -> int:
    """The position of an item among the results; 0 for a size."""
    index = task.args[1] if task.is_item else 0
    return index if isinstance(index, int) else 0


def _is_eager(task: Task) -> bool:
    return not task.launches and not task.ordered and isinstance(task.type, ScalarType)
