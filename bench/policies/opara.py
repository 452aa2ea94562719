"""Opara's schedule: a chain follows its first successor; compute and memory kernels in turn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from bench.policies.operators import multiplies_matrices, n_elements
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.scheduling.launch_order import Earlier, ReadySet, earlier_tasks, in_launch_order


@dataclass(frozen=True)
class Opara:
    """Streams and launch order as in Opara.

    Streams: a task takes the stream of the first of its predecessors of which it is the first
    successor in program order, else a new one. Launch order: of the tasks that are ready,
    compute-bound and memory-bound ones alternate, the one with the smallest demand first. The
    paper takes the demand from a profile (threads, registers, shared memory); here it is the number
    of elements that the task computes. PyTorch has 32 streams, which more Opara streams share.

    Requires: `after` holds the dependencies.
    Ensures: streams 0..n-1 are used, n <= `max_streams`.

    Source: Chen, Xu, Liu, Zhang, Zhou: "Opara: Exploiting Operator Parallelism for Expediting DNN
    Inference on GPUs", 2023 (arXiv 2312.10351), algorithms 1 and 2.
    """

    max_streams: int = 32
    name = "opara"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with streams, in launch order. Cost: O((tasks + edges) log tasks)."""
        streams = {n: s % self.max_streams for n, s in claimed_streams(graph.launching).items()}
        placed = graph.with_streams(streams)
        return in_launch_order(placed, alternating(placed.by_name, earlier_tasks(placed)))


def claimed_streams(tasks: Iterable[Task]) -> dict[str, int]:
    """For each task, in program order: the stream of a predecessor, or a new one."""
    streams: dict[str, int] = {}
    claimed: set[str] = set()
    n_streams = 0
    for task in tasks:
        free = next((name for name in task.after if name not in claimed), None)
        if free is None:
            streams[task.name] = n_streams
            n_streams += 1
        else:
            streams[task.name] = streams[free]
        claimed.update(task.after)
    return streams


def alternating(tasks: Mapping[str, Task], earlier: Earlier) -> list[str]:
    """A topological order in which compute-bound and memory-bound tasks alternate if they can."""
    ready = ReadySet(earlier)
    queues: tuple[list[tuple[int, int, str]], ...] = ([], [])

    def push(names: Iterable[str]) -> None:
        for name in names:
            task = tasks[name]
            heappush(queues[multiplies_matrices(task)], (n_elements(task.type), task.index, name))

    push(ready.first())
    order: list[str] = []
    compute_next = True
    while any(queues):
        queue = queues[compute_next] or queues[not compute_next]
        compute_next = queue is queues[False]
        order.append(heappop(queue)[-1])
        push(ready.after(order[-1]))
    return order
