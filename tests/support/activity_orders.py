"""The order of activities by networkx: the oracle for edits."""

from collections.abc import Collection, Iterable

import networkx as nx

from nimble_fx.simulation.discrete_event import Activity, simulate

Orders = set[tuple[str, str]]


def digraph(activities: Iterable[Activity]) -> "nx.DiGraph[str]":
    """An edge for each wait, and from each to the next on its queue."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    last: dict[str, str] = {}
    for activity in activities:
        graph.add_node(activity.name)
        graph.add_edges_from((name, activity.name) for name, _ in activity.after)
        if activity.queue in last:
            graph.add_edge(last[activity.queue], activity.name)
        last[activity.queue] = activity.name
    return graph


def orders(activities: Iterable[Activity]) -> Orders:
    """All pairs of which the first comes before the second."""
    return set(nx.transitive_closure_dag(digraph(activities)).edges)


def among(pairs: Orders, names: Collection[str]) -> Orders:
    """Those between activities that are named."""
    return {(u, v) for u, v in pairs if u in names and v in names}


def starts(activities: Collection[Activity]) -> dict[str, float]:
    """When each begins."""
    return {span.name: span.start_us for span in simulate(tuple(activities)).spans}


def makespan(activities: Collection[Activity]) -> float:
    """When the last ends."""
    return simulate(tuple(activities)).makespan_us
