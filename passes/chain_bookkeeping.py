"""Keeps small write-backs of state, such as BatchNorm's statistics, from opening streams."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from nimble_fx.ir.dependencies import unplaced_host_tasks
from nimble_fx.ir.task_graph import Task, TaskGraph, TensorType, TupleType, Type, ref_names

SMALL_BYTES = 64 * 1024
"""Below this a kernel's time is its launch: a stream of its own gains nothing."""


@dataclass(frozen=True)
class ChainBookkeeping:
    """Lets each bookkeeping task ride right behind another task, as one more link of its chain.

    Bookkeeping is what writes a small input (`num_batches_tracked += 1`, a running mean) and
    nothing waits for, and the small tasks that only serve it. Each would be a sink that is
    independent of all the others, and maximum concurrency would give each a stream.

    Requires: `after` holds the dependencies (trace).
    Ensures: the same tasks, in a topological order; a bookkeeping task comes after the task it
    rides behind and before one successor of that task.

    Before: norm -> relu, norm -> copy_, add -> copy__1    (two sinks, width 3)
    After:  norm -> copy_ -> add -> copy__1 -> relu        (width 1)
    """

    name = "chain-bookkeeping"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with riders moved and chained. Cost: O(tasks + dependencies)."""
        riders = _riders(graph)
        if not riders:
            return graph
        chained = _chain(graph, riders)
        order = {name: i for i, name in enumerate(_in_new_order(graph, riders))}
        return graph.replace_tasks(sorted(chained, key=lambda task: order[task.name]))


def bookkeeping(graph: TaskGraph) -> set[str]:
    """The tasks that only keep small state of the model up to date."""
    given = {storage for value in graph.inputs for storage in value.holds}
    if not any(given.intersection(task.writes) for task in graph.launching):
        return set()
    returned = set(ref_names(graph.outputs))
    dependents = defaultdict(list)
    for task in graph.tasks:
        for name in dict.fromkeys((*task.after, *task.uses)):
            dependents[name].append(task.name)
    types = {value.name: value.type for value in graph.values}
    found: set[str] = set()
    for task in reversed(graph.launching):
        serves = dependents[task.name]
        writes_state = bool(task.writes) and given.issuperset(task.writes)
        only_serves = bool(serves) and task.name not in returned
        small = sum(_nbytes(types[name]) for name in (task.name, *task.uses)) <= SMALL_BYTES
        kept_in_order = task.ordered or not found.issuperset(serves)
        if small and not kept_in_order and (writes_state or only_serves):
            found.add(task.name)
    return found


def _riders(graph: TaskGraph) -> dict[str, str]:
    """For each bookkeeping task, the task that it rides behind: the last that it needs, or,
    needing none, the last launched before it (so that it is near in time)."""
    found = bookkeeping(graph)
    position = {task.name: i for i, task in enumerate(graph.tasks)}
    riders: dict[str, str] = {}
    previous = next((t.name for t in graph.launching if t.name not in found), None)
    for task in graph.launching:
        if task.name not in found:
            previous = task.name
        elif previous is not None:
            needed = [riders.get(name, name) for name in task.after]
            riders[task.name] = max(needed, key=position.__getitem__, default=previous)
    return riders


def _chain(graph: TaskGraph, riders: dict[str, str]) -> Iterator[Task]:
    """Each task with its `after`: riders in a row, then one successor of what they ride behind.

    That is the first in program order, which no other successor comes before.
    """
    tail: dict[str, str] = {}
    links: dict[str, list[str]] = {}
    for rider, anchor in riders.items():
        links[rider] = [tail.get(anchor, anchor)]
        tail[anchor] = rider
    for task in graph.tasks:
        if task.name not in riders:
            links[task.name] = [tail.pop(name) for name in task.after if name in tail]
        yield task.updated(after=tuple(dict.fromkeys((*task.after, *links.get(task.name, ())))))


def _in_new_order(graph: TaskGraph, riders: dict[str, str]) -> Iterable[str]:
    """Program order, but riders right behind their task, with the views and items they need."""
    behind = defaultdict(list)
    for rider, anchor in riders.items():
        behind[anchor].append(rider)
    placed: dict[str, None] = {}
    for task in graph.tasks:
        if task.name not in riders:
            for name in (task.name, *behind[task.name]):
                placed.update(dict.fromkeys(unplaced_host_tasks(graph, name, placed)))
                placed[name] = None
    return placed


def _nbytes(value: Type | None) -> float:
    """Bytes of a value; infinite where a size is symbolic."""
    if isinstance(value, TensorType):
        if any(isinstance(size, str) for size in value.shape):
            return float("inf")
        return prod(int(size) for size in value.shape) * value.dtype.itemsize
    if isinstance(value, TupleType):
        return sum(_nbytes(item) for item in value.items)
    return 0
