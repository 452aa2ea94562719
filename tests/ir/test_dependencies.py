"""Dependencies and clocks against the closure that networkx computes."""

import networkx as nx
from hypothesis import given

from nimble_fx.ir.dependencies import VectorClocks, hazards
from nimble_fx.ir.task_graph import TaskGraph
from tests.strategies import task_graphs
from tests.support.oracle import conflicts, happens_before
from tests.support.schedules import waiting_schedules


@given(task_graphs())
def test_hazards_imply_every_conflict_and_nothing_else(graph: TaskGraph) -> None:
    after = hazards(task for task in graph.tasks if task.launches)
    edges = {(name, task) for task, names in after.items() for name in names}
    assert edges <= conflicts(graph)
    closure = nx.transitive_closure_dag(nx.DiGraph(sorted(edges)))
    assert conflicts(graph) <= set(closure.edges)


@given(waiting_schedules())
def test_clocks_know_exactly_what_happened_before(graph: TaskGraph) -> None:
    order, clocks = happens_before(graph), VectorClocks()
    launched: list[str] = []
    for task in graph.tasks:
        if task.stream is None:
            continue
        for name in task.waits:
            clocks.wait(task.stream, name)
        for name in launched:
            assert clocks.has_seen(task.stream, name) == order.has_edge(name, task.name)
        clocks.launch(task.name, task.stream)
        launched.append(task.name)
