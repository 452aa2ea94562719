"""Assigns streams and the launch order by cost: the critical path first, on few streams."""

from dataclasses import dataclass, replace

from nimble_fx.cost import CostModel
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.scheduling.launch_order import in_launch_order
from nimble_fx.scheduling.list_schedule import Plan, Workload, list_schedule, serial_schedule
from nimble_fx.simulation.discrete_event import Timeline, bound_us
from nimble_fx.simulation.schedule_model import activities, predict

WORTH_A_STREAM = 0.01
"""The fraction of the time that more streams must save, because each takes memory."""

STREAM_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The numbers of streams to try below the maximum."""


@dataclass(frozen=True)
class CriticalPath:
    """Assigns each launching task a stream and a position in the launch order, by task costs.

    List scheduling by upward rank: among the ready tasks, the one with the longest path in
    microseconds is launched first, on the stream where it starts soonest; a tie goes to the stream
    of the predecessor that ended last. Kernels that fill the device slow each other down, as in
    `simulate`. It plans for several numbers of streams, including one, and takes the fewest streams
    whose plan is within 1% of the best. No plan is predicted slower than the serial one.

    The stream with most of the critical path is the urgent one: where kernels are ready on several
    streams, a CUDA graph starts its kernels first. The simulation does not model that.

    Requires: `after` has the dependencies.
    Ensures: streams 0..n-1 are all used, n <= `max_streams` and the device's maximum; a topological
    order; random draws and side effects keep program order, and on one stream all tasks do; one of
    several streams is urgent, unless `priorities` is False.

    Source: Topcuoglu, Hariri, Wu: "Performance-effective and low-complexity task scheduling for
    heterogeneous computing" (HEFT), IEEE TPDS 13(3), 2002.

    Before: a, short, long_1, long_2, join
    After:  a, long_1, long_2, join on stream 0; short on stream 1, launched after long_1
    """

    costs: CostModel
    max_streams: int = 32
    priorities: bool = True
    name = "critical-path"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with streams assigned, in launch order.

        Cost: about 10 microseconds a task for each of about 8 numbers of streams.
        """
        device, costs = self.costs.device, self.costs(graph)
        work = Workload(graph, costs, device.event_us)
        bound = bound_us(activities(graph, costs, device))
        plan = best_plan(work, min(self.max_streams, device.max_streams), bound)
        planned = apply_plan(graph, plan)
        simulated = predict(with_direct_waits(planned), costs, device)
        serial = serial_schedule(work)
        if plan.n_streams > 1 and simulated.makespan_us > serial.end_us:
            return apply_plan(graph, serial)
        if plan.n_streams <= 1 or not self.priorities:
            return planned
        return replace(planned, urgent=most_critical_stream(planned, simulated))


def best_plan(work: Workload, max_streams: int, bound: float) -> Plan:
    """The plan on the fewest streams whose makespan is close to the best.

    Args:
        work: the tasks.
        max_streams: the maximum number of streams.
        bound: a lower bound of the makespan, in microseconds.
    """
    plans: list[Plan] = []
    for n_streams in (*(n for n in STREAM_COUNTS if n < max_streams), max_streams):
        plans.append(list_schedule(work, n_streams) if n_streams > 1 else serial_schedule(work))
        close = plans[-1].end_us <= bound * (1 + WORTH_A_STREAM)
        if close or plans[-1].n_streams < n_streams:  # more streams would not change the plan
            break
    best_us = min(plan.end_us for plan in plans)
    return next(plan for plan in plans if plan.end_us <= best_us * (1 + WORTH_A_STREAM))


def apply_plan(graph: TaskGraph, plan: Plan) -> TaskGraph:
    """The graph with the plan's streams and launch order; no stream is urgent."""
    return in_launch_order(graph.with_streams(plan.streams), plan.order)


def most_critical_stream(graph: TaskGraph, simulated: Timeline) -> int:
    """The stream with the most microseconds of the critical path."""
    us = {span.name: span.end_us - span.start_us for span in simulated.spans}
    busy = dict.fromkeys(range(graph.n_streams), 0.0)
    for name in simulated.critical_path:
        task = graph.by_name.get(name)  # None for forks and joins
        if task is not None and task.stream is not None:
            busy[task.stream] += us[name]
    return max(busy, key=lambda stream: (busy[stream], -stream))


def with_direct_waits(graph: TaskGraph) -> TaskGraph:
    """The graph with a wait for each dependency between two streams, including implied ones.

    Waits that others imply change no start time, so the simulation needs no minimal set.
    """
    stream = {task.name: task.stream for task in graph.launching}
    return graph.replace_tasks(
        task.updated(waits=tuple(n for n in task.after if stream[n] != task.stream))
        for task in graph.tasks
    )
