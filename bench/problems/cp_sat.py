"""Finds the shortest schedule of a few dozen tasks by constraint programming."""

from collections.abc import Mapping
from dataclasses import dataclass

from ortools.sat.python import cp_model

from nimble_fx.cost import Cost
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.schedule_model import predict

PER_US = 1000
"""The program counts in whole nanoseconds."""


@dataclass(frozen=True)
class Optimum:
    """What the search found out about the shortest schedule.

    Attributes:
        us: the time of the best schedule that was found, in microseconds.
        bound_us: a lower bound for all schedules; equal to `us` if that is proven to be optimal.
    """

    us: float
    bound_us: float

    @property
    def proven(self) -> bool:
        """Whether the best schedule that was found is proven to be the shortest."""
        return self.us == self.bound_us


def shortest_schedule(
    graph: TaskGraph, costs: Mapping[str, Cost], device: Device, effort: float
) -> Optimum:
    """The shortest makespan by `predict` of a schedule on `device.max_streams` streams.

    The model, for tasks that do not slow each other down: each task is on one stream; tasks of a
    stream do not overlap; a task starts when its predecessors have ended, and `device.event_us`
    later if they are on another stream; side streams start that much later than stream 0, which
    notices their ends that much later. The simulator does the same if no task uses a share of the
    device, because tasks can be launched in any order of the tasks on a stream. Kernels that slow
    each other down (processor sharing) have no such model.

    Args:
        graph: a legal schedule to begin with, with streams and waits, and without tasks that the
            host orders.
        costs: the costs of its tasks, in whole nanoseconds and without shares.
        device: the device.
        effort: the limit of the search, in CP-SAT's deterministic seconds, which are the same on
            any machine.
    """
    program = _Program(graph, costs, device)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # several workers would find a different bound each time
    solver.parameters.max_deterministic_time = effort
    solver.solve(program.model)
    return Optimum(
        round(solver.objective_value) / PER_US, round(solver.best_objective_bound) / PER_US
    )


class _Program:
    """The constraint program; `model` is the CP-SAT model."""

    def __init__(self, graph: TaskGraph, costs: Mapping[str, Cost], device: Device) -> None:
        self.model = cp_model.CpModel()
        self._names = [task.name for task in graph.launching]
        self._took = {name: round(costs[name].us * PER_US) for name in self._names}
        self._event = round(device.event_us * PER_US)
        self._streams = range(min(device.max_streams, len(self._names)))
        spans = {span.name: span for span in predict(graph, costs, device).spans}
        most = round(max(span.end_us for span in spans.values()) * PER_US)
        new = self.model.new_int_var
        self._start = {name: new(0, most, f"start {name}") for name in self._names}
        self._on = {
            name: [self.model.new_bool_var(f"{name} on {s}") for s in self._streams]
            for name in self._names
        }
        self._end = new(0, most, "end")
        self._streams_are_queues()
        self._forks_and_joins()
        self._dependencies(graph)
        self._begin_with(graph, {n: round(spans[n].start_us * PER_US) for n in self._names})
        self.model.minimize(self._end)

    def _streams_are_queues(self) -> None:
        for name in self._names:
            self.model.add_exactly_one(self._on[name])
        for s in self._streams:
            self.model.add_no_overlap(
                self.model.new_optional_fixed_size_interval_var(
                    self._start[name], self._took[name], self._on[name][s], f"{name} {s}"
                )
                for name in self._names
            )
            # Implied by the line above; without it the relaxation does not see how much there is.
            self.model.add(
                sum(self._took[name] * self._on[name][s] for name in self._names) <= self._end
            )

    def _forks_and_joins(self) -> None:
        for name in self._names:
            away = self._event * (1 - self._on[name][0])
            self.model.add(self._start[name] >= away)
            self.model.add(self._end >= self._start[name] + self._took[name] + away)

    def _dependencies(self, graph: TaskGraph) -> None:
        for task in graph.launching:
            for before in task.after:
                together = self.model.new_bool_var(f"{before} and {task.name} on one stream")
                for s in self._streams:
                    self.model.add_bool_or(~together, ~self._on[before][s], self._on[task.name][s])
                ended = self._start[before] + self._took[before]
                self.model.add(self._start[task.name] >= ended + self._event * (1 - together))

    def _begin_with(self, graph: TaskGraph, starts: Mapping[str, int]) -> None:
        """Adds a schedule as a hint."""
        for task in graph.launching:
            self.model.add_hint(self._start[task.name], starts[task.name])
            for s in self._streams:
                self.model.add_hint(self._on[task.name][s], task.stream == s)
