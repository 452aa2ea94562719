"""Keeps small write-backs of state, such as BatchNorm's statistics, from opening streams."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from nimble_fx.ir.dependencies import unplaced_host_tasks
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names
from nimble_fx.ir.types import Type, tensor_types
from nimble_fx.scheduling.launch_order import earlier_tasks
from nimble_fx.torch_internals.operators import only_allocates

SMALL_BYTES = 64 * 1024
"""A kernel on fewer bytes takes no longer than its launch: its own stream would gain nothing."""


@dataclass(frozen=True)
class ChainBookkeeping:
    """Chains each bookkeeping task to another task, so that it does not open a stream.

    A bookkeeping task writes a small input (`num_batches_tracked += 1`, a running mean) and has no
    successors, or is small and only has bookkeeping successors. Each would be a sink that is
    independent of all others, so that maximum concurrency would give it a stream.

    Requires: `after` has the dependencies (trace).
    Ensures: the same tasks, in a topological order; a bookkeeping task comes after its anchor and
    before one successor of that.

    Before: norm -> relu, norm -> copy_, add -> copy__1    (two sinks, width 3)
    After:  norm -> copy_ -> add -> copy__1 -> relu        (width 1)
    """

    name = "chain-bookkeeping"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with bookkeeping tasks moved and chained. Cost: O(tasks + dependencies)."""
        anchors = _anchors(graph)
        if not anchors:
            return graph
        chained = _chain(graph, anchors)
        order = {name: i for i, name in enumerate(_in_new_order(graph, anchors))}
        return graph.replace_tasks(sorted(chained, key=lambda task: order[task.name]))


def bookkeeping(graph: TaskGraph) -> set[str]:
    """The tasks that only update small state of the model."""
    state = {storage for value in graph.inputs for storage in value.holds}
    if not any(state.intersection(task.writes) for task in graph.launching):
        return set()
    returned = set(ref_names(graph.outputs))
    dependents = defaultdict(list)
    for task in graph.tasks:
        for name in (*task.after, *task.uses):
            dependents[name].append(task.name)
    types = graph.types
    found: set[str] = set()
    for task in reversed(graph.launching):
        serves = dependents[task.name]
        writes_state = bool(task.writes) and state.issuperset(task.writes)
        only_serves = bool(serves) and task.name not in returned
        small = sum(_nbytes(types[name]) for name in (task.name, *task.uses)) <= SMALL_BYTES
        is_needed = task.ordered or not found.issuperset(serves)
        if small and not is_needed and (writes_state or only_serves):
            found.add(task.name)
    return found


def _anchors(graph: TaskGraph) -> dict[str, str]:
    """For each bookkeeping task, its anchor: the last task that it depends on, or, if it depends on
    none, the last kernel launched before it (so that it is near in time)."""
    found, earlier = bookkeeping(graph), earlier_tasks(graph)
    position = {task.name: i for i, task in enumerate(graph.tasks)}
    anchors: dict[str, str] = {}
    kernels = (task for task in graph.launching if not only_allocates(task.target))
    previous = next((task.name for task in kernels if task.name not in found), None)
    for task in graph.launching:
        if task.name not in found:
            previous = previous if only_allocates(task.target) else task.name
        elif previous is not None:
            needed = [anchors.get(name, name) for name in earlier[task.name]]
            anchors[task.name] = max(needed, key=position.__getitem__, default=previous)
    return anchors


def _chain(graph: TaskGraph, anchors: dict[str, str]) -> Iterator[Task]:
    """Each task with its `after`: an anchor, its bookkeeping tasks one by one, then one successor.

    That is the anchor's first successor in program order, which no other successor precedes.
    """
    tail: dict[str, str] = {}
    links: dict[str, list[str]] = {}
    for chained, anchor in anchors.items():
        links[chained] = [tail.get(anchor, anchor)]
        tail[anchor] = chained
    for task in graph.tasks:
        if task.name not in anchors:
            links[task.name] = [tail.pop(name) for name in task.after if name in tail]
        yield task.updated(after=tuple(dict.fromkeys((*task.after, *links.get(task.name, ())))))


def _in_new_order(graph: TaskGraph, anchors: dict[str, str]) -> Iterable[str]:
    """Program order, but with bookkeeping tasks, and views and items for them, after anchors."""
    chained_to = defaultdict(list)
    for chained, anchor in anchors.items():
        chained_to[anchor].append(chained)
    placed: dict[str, None] = {}
    for task in graph.tasks:
        if task.name not in anchors:
            for name in (task.name, *chained_to[task.name]):
                placed.update(dict.fromkeys(unplaced_host_tasks(graph, name, placed)))
                placed[name] = None
    return placed


def _nbytes(value: Type | None) -> float:
    """The bytes of a value; infinite if a size is symbolic."""
    tensors = list(tensor_types(value))
    if any(isinstance(size, str) for tensor in tensors for size in tensor.shape):
        return float("inf")
    return sum(prod(map(int, tensor.shape)) * tensor.dtype.itemsize for tensor in tensors)
