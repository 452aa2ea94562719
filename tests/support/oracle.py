"""The meaning of a schedule, computed with networkx: the oracle for passes and verifier.

Shares no code with nimble_fx's analyses: happens-before is the closure of a graph of events.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

import networkx as nx

from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names

CALL, RETURN = "<call>", "<return>"


def is_legal(graph: TaskGraph) -> bool:
    """Whether a schedule has none of the faults below."""
    order = happens_before(graph)
    return not (
        races(graph, order)
        or unsafe_frees(graph, order)
        or uses_after_free(graph)
        or outside_call(graph)
    )


def happens_before(graph: TaskGraph) -> "nx.DiGraph[str]":
    """An edge (u, v) for each two launching tasks of which u is done before v starts."""
    closure: nx.DiGraph[str] = nx.transitive_closure_dag(_enqueued(graph))
    return closure


def _enqueued(graph: TaskGraph) -> "nx.DiGraph[str]":
    """An edge for each two neighbours on a stream, and for each wait."""
    order: nx.DiGraph[str] = nx.DiGraph()
    by_stream: dict[int | None, list[str]] = {}
    for task in graph.launching:
        order.add_node(task.name)
        by_stream.setdefault(task.stream, []).append(task.name)
        order.add_edges_from((name, task.name) for name in task.waits)
    for names in by_stream.values():
        order.add_edges_from(pairwise(names))
    return order


def outside_call(graph: TaskGraph) -> set[str]:
    """The tasks that may start before the call does, or end after it returned, on stream 0."""
    order: nx.DiGraph[Any] = _enqueued(graph)
    tasks = set(order)
    of_caller = [task.name for task in graph.launching if task.stream == 0]
    order.add_edges_from((CALL, name) for name in (*of_caller, *graph.forks, RETURN))
    order.add_edges_from((name, RETURN) for name in (*of_caller, *graph.joins))
    return tasks - (nx.descendants(order, CALL) & nx.ancestors(order, RETURN))


def conflicts(graph: TaskGraph) -> set[tuple[str, str]]:
    """Each two tasks that touch a storage which one of them writes, in program order."""
    accesses: dict[str, list[Task]] = {}
    for task in sorted(graph.launching, key=lambda task: task.index):
        for storage in {*task.reads, *task.writes}:
            accesses.setdefault(storage, []).append(task)
    return {
        (first.name, second.name)
        for storage, tasks in accesses.items()
        for first, second in combinations(tasks, 2)
        if storage in first.writes or storage in second.writes
    }


def races(graph: TaskGraph, order: "nx.DiGraph[str] | None" = None) -> set[tuple[str, str]]:
    """The conflicts that nothing orders, or that are ordered the wrong way round."""
    order = happens_before(graph) if order is None else order
    return {pair for pair in conflicts(graph) if not order.has_edge(*pair)}


def unsafe_frees(graph: TaskGraph, order: "nx.DiGraph[str] | None" = None) -> set[str]:
    """The storages that somebody may be given while somebody else may still be using them.

    That is a later task on the stream that owns the storage (any, if the program was given it); and
    on stream 0, at once, the caller, who comes after what stream 0 was given so far.
    """
    order = happens_before(graph) if order is None else order
    holders: dict[str, set[str]] = {}
    for value in graph.values:
        for storage in value.holds:
            holders.setdefault(storage, set()).add(value.name)
    owner = {storage: task.stream for task in graph.tasks for storage in task.allocates}
    dropped: set[str] = set()
    unsafe = set()
    for i, task in enumerate(graph.tasks):
        dropped.update(task.frees)
        given_back = {s for s, names in holders.items() if names <= dropped} if task.frees else ()
        for storage in given_back:
            del holders[storage]
            users = {t.name for t in graph.launching if storage in (*t.reads, *t.writes)}
            later = {
                t.name
                for t in graph.tasks[i + 1 :]
                if t.launches and owner.get(storage, t.stream) == t.stream
            }
            if any(not order.has_edge(user, name) for user in users for name in later):
                unsafe.add(storage)
            if owner.get(storage, 0) == 0 and not seen_by_caller(graph, order, i) >= users:
                unsafe.add(storage)
    return unsafe


def seen_by_caller(graph: TaskGraph, order: "nx.DiGraph[str]", position: int) -> set[str]:
    """What is done once stream 0 has run what it was given up to a position."""
    newest = [t.name for t in graph.tasks[: position + 1] if t.stream == 0][-1:]
    return {*newest, *(name for last in newest for name in order.predecessors(last))}


def uses_after_free(graph: TaskGraph) -> set[str]:
    """The values that are used or returned after they were dropped."""
    dropped: set[str] = set()
    late = set()
    for task in graph.tasks:
        late |= dropped & set(task.uses)
        dropped.update(task.frees)
    return late | (dropped & set(ref_names(graph.outputs)))


def fewest_waits(graph: TaskGraph) -> int:
    """|E'| - |M|: reduced edges less those that a maximum matching lets streams follow."""
    reduced = nx.transitive_reduction(graph.to_networkx())
    return int(reduced.number_of_edges()) - _matching_size(reduced, reduced.edges)


def matching_size(rows: Sequence[int]) -> int:
    """How many edges a maximum matching has, of a graph with a bitset of targets a vertex."""
    vertices = range(len(rows))
    edges = ((u, v) for u in vertices for v in vertices if rows[u] >> v & 1)
    return _matching_size(vertices, edges)


def _matching_size(vertices: Iterable[Any], edges: Iterable[tuple[Any, Any]]) -> int:
    """Of the bipartite graph that has each vertex twice: where edges begin, and where they end."""
    left = {("left", u) for u in vertices}
    both = nx.Graph((("left", u), ("right", v)) for u, v in edges)
    both.add_nodes_from(left)
    return len(nx.bipartite.hopcroft_karp_matching(both, left)) // 2
