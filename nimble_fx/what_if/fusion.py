"""What tasks of a program would take as one kernel."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import MEMORY_EFFICIENCY
from nimble_fx.cost.work import nbytes_of
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph, ref_names


@dataclass(frozen=True)
class Fusion:
    """The tasks of a program, to be fused to one kernel.

    Attributes:
        graph: the program, with known sizes.
        costs: the cost of each launching task, by name.
        device: the device that runs them.
    """

    graph: TaskGraph
    costs: Mapping[str, Cost]
    device: Device

    def figures(self, names: Collection[str]) -> tuple[float, float]:
        """The microseconds that tasks take as one kernel, and its fraction of the bandwidth.

        One launch remains of all, and no traffic of the values that only these tasks use.
        """
        total_us = sum(self.costs[name].us for name in names)
        traffic_us = sum(self.costs[name].bandwidth * self.costs[name].us for name in names)
        launches_us = self.device.kernel_us * (len(names) - 1)
        inner_us = 1e-3 * self._inner_nbytes(names) / self.device.gbps
        least_us = min(self.device.kernel_us, total_us)
        us = max(total_us - launches_us - inner_us / MEMORY_EFFICIENCY, least_us)
        return us, min(1.0, max(0.0, traffic_us - inner_us) / us) if us else 0.0

    def _inner_nbytes(self, names: Collection[str]) -> float:
        """The bytes of writes and reads of values that only these tasks define and use."""
        kept = self._outside.union(*(self._origins[v] for v in ref_names(self.graph.outputs)))
        return sum(
            nbytes_of(self.graph.by_name[name]) + sum(self._reads[name].values())
            for name in set(names) - kept
            if self._reads[name] and self._reads[name].keys() <= set(names)
        )

    @cached_property
    def _outside(self) -> frozenset[str]:
        """The values that no task defines."""
        return frozenset(value.name for value in (*self.graph.inputs, *self.graph.constants))

    @cached_property
    def _origins(self) -> Mapping[str, frozenset[str]]:
        """The launching tasks, or inputs, whose memory each value is: a view's are its base's."""
        origins = {name: frozenset([name]) for name in self._outside}
        for task in self.graph.tasks:
            through = frozenset[str]().union(*(origins[value] for value in task.uses))
            origins[task.name] = frozenset([task.name]) if task.launches else through
        return origins

    @cached_property
    def _reads(self) -> Mapping[str, Mapping[str, float]]:
        """For each launching task, the bytes that others read of its results, by reader."""
        found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for task in self.graph.launching:
            for value in task.uses:
                for origin in self._origins[value] - self._outside:
                    defined = nbytes_of(self.graph.by_name[origin])
                    seen = nbytes_of(self.graph.by_name[value])
                    found[origin][task.name] += min(defined, seen)
        return found
