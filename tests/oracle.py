"""What a schedule means, worked out the slow way with networkx: the judge of passes and verifier.

Shares no code with nimble_fx's analyses: happens-before is the closure of a graph of events.
"""

from itertools import pairwise

import networkx as nx

from nimble_fx.ir import TaskGraph, ref_names


def happens_before(graph: TaskGraph) -> "nx.DiGraph[str]":
    """An edge (u, v) for each two launching tasks of which u is done before v starts."""
    order: nx.DiGraph[str] = nx.DiGraph()
    by_stream: dict[int | None, list[str]] = {}
    for task in graph.tasks:
        if task.launches:
            order.add_node(task.name)
            by_stream.setdefault(task.stream, []).append(task.name)
            order.add_edges_from((name, task.name) for name in task.waits)
    for names in by_stream.values():
        order.add_edges_from(pairwise(names))
    closure: nx.DiGraph[str] = nx.transitive_closure_dag(order)
    return closure


def conflicts(graph: TaskGraph) -> set[tuple[str, str]]:
    """Each two tasks that touch a storage which one of them writes, in program order."""
    tasks = sorted((t for t in graph.tasks if t.launches), key=lambda t: t.index)
    found = set()
    for i, first in enumerate(tasks):
        for second in tasks[i + 1 :]:
            touched = {*second.reads, *second.writes}
            if touched & set(first.writes) or set(second.writes) & set(first.reads):
                found.add((first.name, second.name))
    return found


def races(graph: TaskGraph) -> set[tuple[str, str]]:
    """The conflicts that nothing orders, or that are ordered the wrong way round."""
    order = happens_before(graph)
    return {pair for pair in conflicts(graph) if not order.has_edge(*pair)}


def unsafe_frees(graph: TaskGraph) -> set[str]:
    """The storages that somebody may be given while somebody else may still be using them.

    That is a later task on the stream that owns the storage (any, if the program was given it); and
    on stream 0, at once, the caller, who comes after what stream 0 was given so far.
    """
    order = happens_before(graph)
    holders: dict[str, set[str]] = {}
    for value in graph.values:
        for storage in value.holds:
            holders.setdefault(storage, set()).add(value.name)
    owner = {storage: task.stream for task in graph.tasks for storage in task.allocates}
    dropped: set[str] = set()
    unsafe = set()
    for i, task in enumerate(graph.tasks):
        dropped.update(task.frees)
        for storage in {s for s, names in holders.items() if names <= dropped}:
            del holders[storage]
            users = {t.name for t in graph.launching if storage in {*t.reads, *t.writes}}
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
    given = [t.name for t in graph.tasks[: position + 1] if t.stream == 0]
    return {*given, *(u for u, v in order.edges if v in given)}


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
    left = {("left", u) for u in reduced}
    both = nx.Graph((("left", u), ("right", v)) for u, v in reduced.edges)
    both.add_nodes_from(left)
    matched = len(nx.bipartite.hopcroft_karp_matching(both, left)) // 2
    return int(reduced.number_of_edges()) - matched
