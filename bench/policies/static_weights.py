"""TensorRT-LLM's schedule: list scheduling with a fixed weight for each kind of operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from bench.policies.operators import multiplies_matrices, operator_name
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.scheduling.launch_order import ReadySet, earlier_tasks, in_launch_order

MOE, GEMM, OTHER = 20, 10, 1


@dataclass(frozen=True)
class StaticWeights:
    """Streams as in TensorRT-LLM's multi-stream pass, launched in the order of selection.

    Of the tasks that are ready, the one with the heaviest path after it comes next, on the first
    stream that is idle when it could start, else on the one that is idle first. A fused mixture of
    experts weighs 20, a matrix product 10, any other operator 1. TensorRT-LLM lists the products of
    language models; convolutions count as products here. TensorRT-LLM then launches stream after
    stream, as far as each is ready; here tasks are launched in the order of selection.

    Requires: `after` holds the dependencies.
    Ensures: streams 0..n-1 are used, n <= `max_streams`.

    Source: NVIDIA TensorRT-LLM, the auto multi-stream pass of its PyTorch backend (3 streams).
    """

    max_streams: int = 3
    name = "static-weights"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with streams, in launch order. Cost: O((tasks + edges) log tasks)."""
        earlier = earlier_tasks(graph)
        ahead = weight_ahead(graph.by_name, earlier)
        ready = ReadySet(earlier)
        queue = [(-ahead[name], graph.by_name[name].index, name) for name in ready.first()]
        heapify(queue)
        ends: dict[str, int] = {}
        streams: dict[str, int] = {}
        busy_until = [0] * self.max_streams
        while queue:
            task = graph.by_name[heappop(queue)[-1]]
            start = max((ends[name] for name in earlier[task.name]), default=0)
            ends[task.name] = start
            if task.launches:
                s = idle_stream(busy_until, start)
                ends[task.name] = busy_until[s] = max(start, busy_until[s]) + weight(task)
                streams[task.name] = s
            for name in ready.after(task.name):
                heappush(queue, (-ahead[name], graph.by_name[name].index, name))
        placed = graph.with_streams(streams)
        return in_launch_order(placed, ends)


def weight(task: Task) -> int:
    """The weight of a task."""
    if "moe" in operator_name(task):
        return MOE
    return GEMM if multiplies_matrices(task) else OTHER


def weight_ahead(tasks: Mapping[str, Task], earlier: Mapping[str, list[str]]) -> dict[str, int]:
    """For each task, the weight of the heaviest path after it, without its own weight."""
    ahead = dict.fromkeys(earlier, 0)
    for name in sorted(earlier, key=lambda name: -tasks[name].index):
        for before in earlier[name]:
            ahead[before] = max(ahead[before], weight(tasks[name]) + ahead[name])
    return ahead


def idle_stream(busy_until: list[int], start: int) -> int:
    """The first stream that is idle at `start`, else the one that is idle soonest."""
    idle = next((s for s, until in enumerate(busy_until) if until <= start), None)
    return min(range(len(busy_until)), key=busy_until.__getitem__) if idle is None else idle
