"""What every launch order keeps to, and where what launches nothing goes in it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise

from nimble_fx.ir.dependencies import unplaced_host_tasks
from nimble_fx.ir.task_graph import ScalarType, Task, TaskGraph, TupleType

Earlier = Mapping[str, Sequence[str]]
"""For each task of the launch order, tasks of it that come earlier."""


def earlier_tasks(graph: TaskGraph) -> dict[str, list[str]]:
    """For each task that launches or is ordered, those of its kind that come earlier.

    What a task uses through views and sizes is followed back to who launches it. Random draws and
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


class Ready:
    """Tasks one by one: those that may come next, once all that they come after was taken."""

    def __init__(self, earlier: Earlier) -> None:
        self._sorter = TopologicalSorter({name: set(before) for name, before in earlier.items()})
        self._sorter.prepare()

    def first(self) -> Iterable[str]:
        """The tasks that come after no other."""
        return self._sorter.get_ready()

    def after(self, name: str) -> Iterable[str]:
        """The tasks that become ready when `name` is taken."""
        self._sorter.done(name)
        return self._sorter.get_ready()


def us_ahead(earlier: Earlier, us: Mapping[str, float]) -> dict[str, float]:
    """For each task, what the longest path that begins with it takes, in microseconds.

    The "upward rank" of list scheduling, with communication left out, which costs more than its
    task only where tasks are tiny (Topcuoglu, Hariri, Wu: "Performance-effective and
    low-complexity task scheduling for heterogeneous computing", IEEE TPDS 13(3), 2002).

    Args:
        earlier: of a graph, as `earlier_tasks` has it: in a topological order.
        us: what each task takes; one that is not there takes nothing.
    """
    ahead = {name: us.get(name, 0.0) for name in earlier}
    for name in reversed(list(earlier)):
        for before in earlier[name]:
            ahead[before] = max(ahead[before], us.get(before, 0.0) + ahead[name])
    return ahead


def in_launch_order(graph: TaskGraph, order: Iterable[str]) -> TaskGraph:
    """The graph with its tasks in `order`, and those that launch nothing put in between them.

    A view comes right before its first use, a size and an item of a result as soon as they can.

    Args:
        graph: the tasks.
        order: the names that `earlier_tasks` has, each after those that it must come after.
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
                if ready and task.name not in placed and task.name not in queue:
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
