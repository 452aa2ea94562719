"""Inserts a wait for each dependency that stream order and other waits do not imply."""

from dataclasses import dataclass

from nimble_fx.ir.dependencies import VectorClocks
from nimble_fx.ir.task_graph import Task, TaskGraph


@dataclass(frozen=True)
class InsertWaits:
    """Makes each task wait for the tasks on other streams that it depends on.

    A dependency that stream order and earlier waits imply needs no wait. Where every stream is a
    chain, that leaves one wait for each edge of the minimum equivalent graph that no stream
    follows: `|E'| - |M|` (Kwon et al., NeurIPS 2020, theorem 2).

    Requires: streams assigned; tasks in launch order; `after` is the minimum equivalent graph.
    Ensures: stream order and waits imply every dependency in `after`; no wait follows from others.

    Before: sigmoid on stream 1, add on stream 0 after relu and sigmoid
    After:  add waits for sigmoid
    """

    name = "insert-waits"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with `waits` set. Cost: O((tasks + waits) x streams)."""
        clocks = VectorClocks()
        position = {task.name: i for i, task in enumerate(graph.tasks)}

        def synchronized(task: Task) -> Task:
            if task.stream is None:
                return task
            waits = []
            for name in sorted(task.after, key=position.__getitem__, reverse=True):
                if not clocks.has_seen(task.stream, name):
                    clocks.wait(task.stream, name)
                    waits.append(name)
            clocks.launch(task.name, task.stream)
            return task.updated(waits=tuple(reversed(waits)))

        return graph.replace_tasks(synchronized(task) for task in graph.tasks)
