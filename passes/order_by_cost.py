"""Orders the launches of tasks by cost, whatever their streams are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from nimble_fx.cost import Cost, CostModel
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import (
    Earlier,
    ReadySet,
    earlier_tasks,
    in_launch_order,
    upward_rank,
)

LaunchOrder = Literal["critical", "alternating"]


@dataclass(frozen=True)
class OrderByCost:
    """Sets the launch order of tasks by their costs; streams stay.

    `order="critical"`: the ready task with the highest upward rank comes next.
    `order="alternating"`: compute-bound and memory-bound tasks alternate if both are ready, each
    time the one with the smallest share of the device, so that concurrent kernels need different
    resources. On one stream, program order stays.

    Requires: streams are assigned; `after` has the dependencies.
    Ensures: a topological order on the same streams; random draws and side effects keep program
    order.

    Source: "critical": Topcuoglu, Hariri, Wu (HEFT), IEEE TPDS 13(3), 2002. "alternating": Chen,
    Xu, Liu, Zhang, Zhou: "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on
    GPUs", 2023 (arXiv 2312.10351), algorithm 2.

    Before: product_1, product_2, copy_1, copy_2 on four streams
    After:  product_1, copy_1, product_2, copy_2 ("alternating")
    """

    costs: CostModel
    order: LaunchOrder = "critical"
    name = "order-by-cost"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with its tasks in launch order. Cost: O((tasks + edges) log tasks)."""
        if graph.n_streams <= 1:
            return graph
        earlier, costs = earlier_tasks(graph), self.costs(graph)
        if self.order == "critical":
            return in_launch_order(graph, most_urgent_first(earlier, costs))
        return in_launch_order(graph, alternating(earlier, costs, self.costs.device))


def most_urgent_first(earlier: Earlier, costs: Mapping[str, Cost]) -> list[str]:
    """A topological order by descending upward rank."""
    ahead = upward_rank(earlier, {name: cost.us for name, cost in costs.items()})
    number = {name: i for i, name in enumerate(earlier)}
    return sorted(earlier, key=lambda name: (-ahead[name], number[name]))


def alternating(earlier: Earlier, costs: Mapping[str, Cost], device: Device) -> list[str]:
    """A topological order in which compute-bound and memory-bound tasks alternate if possible."""
    number = {name: i for i, name in enumerate(earlier)}
    ready = ReadySet(earlier)
    by_memory: list[tuple[float, int, str]] = []
    by_compute: list[tuple[float, int, str]] = []

    def push(names: Iterable[str]) -> None:
        for name in names:
            cost = costs.get(name)
            compute = cost is not None and cost.is_compute_bound(device)
            demand = 0.0 if cost is None else max(cost.share, cost.bandwidth)
            heappush(by_compute if compute else by_memory, (demand, number[name], name))

    push(ready.first())
    order: list[str] = []
    queue, other = by_compute, by_memory
    while queue or other:
        taken = queue or other
        order.append(heappop(taken)[-1])
        if taken is queue:
            queue, other = other, queue
        push(ready.after(order[-1]))
    return order
