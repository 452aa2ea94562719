"""In which order the host enqueues tasks whose streams are given, by what they cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from nimble_fx.cost import Cost, CostModel
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import (
    Earlier,
    Ready,
    earlier_tasks,
    in_launch_order,
    us_ahead,
)

LaunchOrder = Literal["critical", "alternating"]


@dataclass(frozen=True)
class OrderByCost:
    """Puts the tasks in the order in which they are launched, whatever streams they are on.

    `order="critical"`: of the tasks that could come next, the one with the longest path of
    microseconds ahead. `order="alternating"`: one that is bound by compute and one that is bound
    by memory in turn if there are such, of each kind the one that asks for the smallest share of
    the device, so that kernels that run side by side ask for different things. On one stream the
    program's own order stands.

    Requires: streams are assigned; `after` holds the dependencies.
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
    """A topological order in which tasks with more ahead of them come first."""
    ahead = us_ahead(earlier, {name: cost.us for name, cost in costs.items()})
    number = {name: i for i, name in enumerate(earlier)}
    return sorted(earlier, key=lambda name: (-ahead[name], number[name]))


def alternating(earlier: Earlier, costs: Mapping[str, Cost], device: Device) -> list[str]:
    """A topological order in which compute-bound and memory-bound tasks alternate if they can."""
    number = {name: i for i, name in enumerate(earlier)}
    ready = Ready(earlier)
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
