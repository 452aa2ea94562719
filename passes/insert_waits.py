"""Which tasks wait for which others' events: one wait for each order that streams do not keep."""

from dataclasses import dataclass

from nimble_fx.ir.dependencies import VectorClocks
from nimble_fx.ir.task_graph import Task, TaskGraph


@dataclass(frozen=True)
class InsertWaits:
    """Makes each task wait for the tasks on other streams that it must come after.

    An order that stream order and the waits so far already imply needs none. Where every stream is
    a chain that is exactly one wait for each edge of the minimum equivalent graph that is not
    followed by a stream: `|E'| - |M|` (Kwon et al., NeurIPS 2020, theorem 2).

    Requires: streams assigned; tasks in launch order; `after` holds the minimum equivalent graph.
    Ensures: every order in `after` is kept by stream order and waits; no wait follows from others.

    Before: sigmoid on stream 1, add on stream 0 after relu and sigmoid
    After:  add waits for sigmoid
    """

    name = "insert-waits"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with `waits`. Cost: O((tasks + waits) x streams)."""
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
