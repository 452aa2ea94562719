"""Costs of tasks by measured times, or by those of similar tasks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, hypot, log
from pathlib import Path

import torch

from nimble_fx import devices
from nimble_fx.cost import NO_KERNEL, Cost, Origin
from nimble_fx.cost.cold_values import cold_values
from nimble_fx.cost.roofline import roofline
from nimble_fx.cost.signature import signature
from nimble_fx.cost.task_times import measured_times
from nimble_fx.cost.time_table import MeasuredTime, MeasuredTimes, TimeTable
from nimble_fx.cost.work import Work, work_of
from nimble_fx.devices.specs import Device
from nimble_fx.ir.symbolic_sizes import Sizes, concrete
from nimble_fx.ir.task_graph import Task, TaskGraph, target_name
from nimble_fx.torch_internals.operators import only_allocates

N_NEIGHBOURS = 4
"""The number of measured tasks that a time is interpolated from."""


@dataclass(frozen=True)
class Measured:
    """A cost model by a table of measured times.

    The time of a task that is not in the table is its roofline time, scaled as the measured times
    of the nearest tasks of its operator and dtype differ from theirs; unscaled if there are none.
    `Cost.origin` says which.

    Attributes:
        device: the measured device, for the roofline.
        times: measured times by signature.
        sizes: the values of symbolic sizes.
        failed: errors of tasks that could not be measured, by signature.
    """

    device: Device
    times: MeasuredTimes
    sizes: Sizes = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"measured on {self.device.name}"

    @staticmethod
    def of(
        graph: TaskGraph, device: devices.DeviceRuntime, directory: Path, sizes: Sizes | None = None
    ) -> "Measured":
        """The cost model from a directory's table; measures the graph's tasks that it lacks.

        Cost: if a signature is new, on a CPU that of `time_in_program.measured_in_program`, on a
        GPU a capture and replays for each new one. A signature that failed is measured again each
        time.

        Args:
            graph: traced or scheduled.
            device: the graph's device, on this machine.
            directory: the directory of tables; created if it does not exist.
            sizes: the values of symbolic sizes.

        Raises:
            FileError: the table cannot be read or written.
            UnsupportedError: a size depends on a symbol that `sizes` does not have.
        """
        table = TimeTable.of(directory, device)
        times, failed = measured_times(concrete(graph, sizes or {}), device, table.times)
        return Measured(device.specs, table.with_more(times).times, sizes or {}, failed)

    def __call__(self, graph: TaskGraph) -> Mapping[str, Cost]:
        """The cost of each launching task, by its name.

        Raises:
            UnsupportedError: a size depends on a symbol that `sizes` does not have.
        """
        graph = concrete(graph, self.sizes)
        types, cold = graph.types, cold_values(graph)
        costs: dict[str, Cost] = {}
        known: dict[str, Cost] = {}
        for task in graph.launching:
            if only_allocates(task.target):
                costs[task.name] = NO_KERNEL
                continue
            key = signature(task, types, cold)
            if key not in known:
                known[key] = self._cost(key, task, work_of(task, types))
            costs[task.name] = known[key]
        return costs

    def _cost(self, key: str, task: Task, work: Work) -> Cost:
        guess = roofline(work, self.device)
        if key in self.times:
            return _with_us(guess, self.times[key].us, "measured", self.device)
        neighbours = self._by_operator.get((target_name(task.target), work.dtype), ())
        if not neighbours:
            return guess
        ratio = _ratio(work, neighbours, self.device)
        return _with_us(guess, guess.us * ratio, "interpolated", self.device)

    @cached_property
    def _by_operator(self) -> Mapping[tuple[str, torch.dtype], Sequence[MeasuredTime]]:
        found: dict[tuple[str, torch.dtype], list[MeasuredTime]] = defaultdict(list)
        for timed in self.times.values():
            found[timed.operator, timed.work.dtype].append(timed)
        return found


def _with_us(guess: Cost, us: float, origin: Origin, device: Device) -> Cost:
    bandwidth = min(1.0, guess.nbytes / (1e3 * us * device.gbps))
    return replace(guess, us=us, bandwidth=bandwidth, origin=origin)


def _ratio(work: Work, neighbours: Sequence[MeasuredTime], device: Device) -> float:
    """The ratio of measured to roofline time of the neighbours: a geometric mean by nearness."""
    nearest = sorted(neighbours, key=lambda timed: _distance(work, timed.work))[:N_NEIGHBOURS]
    weights = [1 / (1e-3 + _distance(work, timed.work)) for timed in nearest]
    logs = [log(timed.us / roofline(timed.work, device).us) for timed in nearest]
    return exp(sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights))


def _distance(one: Work, other: Work) -> float:
    """The Euclidean distance of the logarithms of their operations and bytes."""
    return hypot(
        log(max(one.flops, 1.0) / max(other.flops, 1.0)),
        log(max(one.nbytes, 1.0) / max(other.nbytes, 1.0)),
    )
