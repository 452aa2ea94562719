"""Reduces the dependencies to the minimum equivalent graph."""

from dataclasses import dataclass

from nimble_fx.ir.bitset_dag import bits, reduction
from nimble_fx.ir.task_graph import TaskGraph, dependency_rows


@dataclass(frozen=True)
class ReduceEdges:
    """Removes each dependency that others imply.

    Step 1 of Nimble's stream assignment (Kwon et al., NeurIPS 2020); on a DAG it is the transitive
    reduction (Aho, Garey, Ullman 1972).

    Requires: `after` has the dependencies; tasks are in a topological order.
    Ensures: `after` has the fewest dependencies with the same transitive closure.

    Before: b after a; c after b; c after a
    After:  b after a; c after b
    """

    name = "reduce-edges"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with a minimal `after`. Cost: O(edges x tasks / 64) words."""
        launching = graph.launching
        reduced, _ = reduction(dependency_rows(launching))
        after: dict[str, list[str]] = {task.name: [] for task in launching}
        for u, row in enumerate(reduced):
            for v in bits(row):
                after[launching[v].name].append(launching[u].name)
        return graph.replace_tasks(
            task.updated(after=tuple(after.get(task.name, ()))) for task in graph.tasks
        )
