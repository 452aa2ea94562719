"""Measures how far schedules are from the shortest ones, on a few dozen tasks.

The tasks are windows of models, and random graphs, with costs from a roofline. OR-Tools' CP-SAT
finds the shortest schedule on 2, 3 and 4 streams, or a lower bound, for tasks that do not slow each
other down; there is no exact model for tasks that do (see `bench.problems.cp_sat`). Each policy's
schedule is simulated with the same costs. "sharing" is with costs of tasks that slow each other
down, relative to the simple bound of the longest path and all work, for any number of streams.
"nimble" has no limit on streams, and the device maps them to its own; "nimble-capped" has at most
the device's streams.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import torch

from bench.command_line.console import print_table, progress, say
from bench.command_line.record import Target, finish
from bench.command_line.selection import at_least_one, chosen, selecting_parser
from bench.models.model import Form, Model
from bench.problems.cp_sat import shortest_schedule
from bench.problems.model_graphs import Traces
from bench.problems.optimality_gap import (
    CRITICAL_PATH,
    DistanceRow,
    distance_cells,
    median_distance,
)
from bench.problems.scheduling_problems import Instance, random_instance, windows, without_sharing
from nimble_fx.cost import Cost
from nimble_fx.cost.given_costs import GivenCosts
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES, Device, find_device
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.passes.order_by_cost import OrderByCost
from nimble_fx.passes.order_launches import OrderLaunches
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.pipeline import Pass
from nimble_fx.simulation.discrete_event import Timeline
from nimble_fx.simulation.schedule_model import predict

MODELS = (
    *("nasnet_a_mobile", "amoebanet_a", "darts_v2_imagenet"),
    *("googlenet", "inception_v3", "randwire_ws"),
)
MEDIAN_TARGET = 0.05


def schedulers(model: GivenCosts) -> dict[str, tuple[Pass, ...]]:
    """The policies by name: functions that assign streams and a launch order."""
    limit = model.device.max_streams
    return {
        "serial": (AssignStreams("serial"),),
        "nimble": (AssignStreams("nimble"), OrderLaunches()),
        "nimble-capped": (AssignStreams("nimble", limit), OrderLaunches()),
        "nimble-capped, critical first": (AssignStreams("nimble", limit), OrderByCost(model)),
        CRITICAL_PATH: (CriticalPath(model, limit),),
    }


def scheduled(graph: TaskGraph, passes: Sequence[Pass]) -> TaskGraph:
    """The graph with streams, in launch order, with waits."""
    return reduce(lambda made, step: step(made), (ReduceEdges(), *passes, InsertWaits()), graph)


def timelines(
    graph: TaskGraph, costs: Mapping[str, Cost], device: Device
) -> dict[str, tuple[TaskGraph, Timeline]]:
    """Each policy's schedule, and its simulated run."""
    made = {
        name: scheduled(graph, passes)
        for name, passes in schedulers(GivenCosts(device, costs)).items()
    }
    return {name: (graph, predict(graph, costs, device)) for name, graph in made.items()}


def measure(instance: Instance, device: Device, effort: float) -> DistanceRow:
    """The policies and the optimum on one problem; `device.max_streams` streams."""
    costs = without_sharing(instance.costs)
    alone = timelines(instance.graph, costs, device)
    sharing = timelines(instance.graph, instance.costs, device)
    optimum = shortest_schedule(alone[CRITICAL_PATH][0], costs, device, effort)
    return DistanceRow(
        name=instance.name,
        n_tasks=len(instance.graph.launching),
        n_streams=device.max_streams,
        best_us=optimum.us,
        bound_us=optimum.bound_us,
        alone_us={name: timeline.makespan_us for name, (_, timeline) in alone.items()},
        sharing_bound_us=max(timeline.bound_us for _, timeline in sharing.values()),
        sharing_us={name: timeline.makespan_us for name, (_, timeline) in sharing.items()},
    )


def model_instances(
    model: Model, form: Form, batch: int, args: argparse.Namespace
) -> Iterator[Instance]:
    """Windows of a model's program, in inference."""
    torch.compiler.reset()
    torch.manual_seed(0)
    traces = Traces()
    with torch.no_grad():
        torch.compile(form.build().eval(), backend=traces)(*form.inputs(batch))
    for graph in traces.graphs:
        costs = Roofline(find_device(args.planned_for))(graph)
        yield from windows(model.title, graph, costs, args.tasks, args.windows)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = selecting_parser(__doc__, MODELS)
    options.add_argument(
        "--planned-for", choices=list(DEVICES), default="h200", help="the device of the costs"
    )
    options.add_argument("--streams", type=at_least_one, nargs="+", default=[2, 3, 4])
    options.add_argument("--tasks", type=at_least_one, default=30, help="in an instance")
    options.add_argument("--windows", type=at_least_one, default=3, help="of each model")
    options.add_argument("--random", type=int, default=9, help="how many random graphs")
    options.add_argument(
        "--effort", type=float, default=0.25, help="CP-SAT's deterministic seconds an instance"
    )
    return options.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, writes; 0."""
    args = _parse(argv)
    instances: list[Instance] = []
    cases = chosen(args, training=False)
    with progress("tracing", len(cases)) as begin:
        for model, form, batch in cases:
            begin(model.title)
            instances += model_instances(model, form, batch, args)
    instances += [random_instance(seed, args.tasks) for seed in range(args.random)]
    devices = [replace(find_device(args.planned_for), max_streams=n) for n in args.streams]
    rows = []
    with progress("optimality", len(instances) * len(devices)) as begin:
        for device in devices:
            for instance in instances:
                begin(f"{instance.name}, {device.max_streams} streams")
                rows.append(measure(instance, device, args.effort))
    header, body = distance_cells(rows)
    print_table("Time over that of the shortest schedule, less 1", header, [body])
    n_proven = sum(row.proven for row in rows)
    say(f"{n_proven} of {len(rows)} optima are proven; of the others, distances are to the bound")
    target = Target(
        "critical-path: median time over the optimum, less 1",
        median_distance(rows, CRITICAL_PATH),
        MEDIAN_TARGET,
    )
    finish("optimality", args, {"rows": rows}, [target])
    return 0


if __name__ == "__main__":
    sys.exit(main())
