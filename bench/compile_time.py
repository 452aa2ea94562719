"""Measures the time of each stage of a compile, for models and graphs of up to 20,000 tasks.

A stage's figure is the median of repeated runs: for a model on the ATen graph of its first call,
for a synthetic graph, which is not traced, on a TaskGraph. Python's garbage collector is paused
meanwhile, as the backend pauses it. "in the first call" is nimble_fx's part of the first call of a
compiled model.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from bench.command_line.console import print_table, progress
from bench.command_line.record import Target, finish
from bench.command_line.selection import at_least_one, selecting_parser
from bench.measuring.stages import (
    FirstCall,
    Seconds,
    first_call,
    growth_exponent,
    theory,
    time_graph,
    time_traced,
)
from bench.measuring.timing import Spread, collected_before, ratios, synchronize
from bench.models.examples import Example, example
from bench.models.synthetic import cell_graph
from bench.peers.baselines import peers, refuse_unknown_peers
from bench.policies import find_policy
from bench.tables.compile_figures import (
    Figures,
    FirstCalls,
    count_rows,
    peer_rows,
    stage_rows,
    total_rows,
)
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.pipeline import Policy
from nimble_fx.selection.search_space import scheduled_candidates
from nimble_fx.tracing.aten_to_tasks import Traced

_T = TypeVar("_T")

LARGE = "nasnet_a_large"
LARGE_TARGET_SECONDS = 0.3
CELLS_TARGET_SECONDS = 5.0
EXPONENT_TARGET = 1.4
CHOOSING_TARGET = 0.2

NETWORKX_LIMIT = 6000
"""The most tasks of a graph to check with networkx, which would take minutes for more."""


def measure(
    name: str, given: Callable[[], _T], run: Callable[[_T], tuple[Seconds, TaskGraph]], rounds: int
) -> tuple[Figures, TaskGraph]:
    """Runs the stages `rounds` times; returns the figures, and the scheduled graph.

    Args:
        name: the graph's name.
        given: makes a new input of `run`, untimed, so that no round finds filled caches.
        run: runs the stages.
        rounds: the number of runs.
    """
    samples: list[Seconds] = []
    for _ in range(rounds):
        start_from = given()
        with collected_before():
            seconds, graph = run(start_from)
        samples.append(seconds)
    figures = Figures(
        name=name,
        n_tasks=len(graph.launching),
        n_streams=graph.n_streams,
        width=graph.width,
        n_waits=graph.n_waits,
        n_edges=graph.n_edges,
        theory=theory(graph) if len(graph.launching) <= NETWORKX_LIMIT else None,
        stage_seconds={stage: median(s[stage] for s in samples) for stage in samples[0]},
        total_seconds=Spread.of([sum(s.values()) for s in samples]),
    )
    return figures, graph


def measure_model(name: str, batch: int | None, args: argparse.Namespace) -> Iterator[Figures]:
    """Measures whole first calls, and then the stages by themselves, for each policy."""
    built = example(name, batch, args.device)
    by_peers = {peer: peer_seconds(built, peer) for peer in args.peers}
    for policy in args.policies:
        steps = with_passes(policy)
        calls = [first_call(built, steps) for _ in range(args.first_calls)]
        stages = partial(time_traced, policy=steps)
        retrace = calls[-1].retrace
        title = built.title + f", {policy}" * (policy != "nimble")
        figures, graph = measure(title, lambda retrace=retrace: retrace, stages, args.rounds)  # type: ignore[misc]
        whole, ours = [c.whole_seconds for c in calls], [c.nimble_seconds for c in calls]
        yield replace(
            figures,
            first_calls=FirstCalls(Spread.of(whole), Spread.of(ours), ratios(ours, whole)),
            as_in_first_call=graph.tasks == calls[-1].program.graph.tasks,
            peer_seconds=by_peers,
            choosing_seconds=choosing_seconds(retrace, args.rounds),
        )


def choosing_seconds(retrace: Callable[[], Traced], rounds: int) -> float:
    """The median time in which "auto" makes and simulates its candidates for an H100."""
    costs, samples = Roofline(DEVICES["h100"]), []
    for _ in range(rounds):
        graph = retrace().graph
        with collected_before():
            start = perf_counter()
            scheduled_candidates(graph, costs, costs.device.max_streams, {})
            samples.append(perf_counter() - start)
    return median(samples)


def with_passes(name: str) -> Policy:
    """Refuses policies that select schedules by cost, because they have no stages of their own.

    Raises:
        SystemExit: the policy selects by cost.
    """
    policy = find_policy(name)
    if policy == "auto" or policy == "critical-path":
        raise SystemExit(f"{name} goes by costs; the time of choosing is among the figures.")
    return policy


def peer_seconds(built: Example, peer: str) -> float:
    """The time of a whole first call with another compiler."""
    torch.compiler.reset()
    compile_ = peers(torch.device(built.inputs[0].device), training=False)[peer]
    with torch.no_grad():
        start = perf_counter()
        compile_(built.model, built.inputs)(*built.inputs)
        synchronize()
        return perf_counter() - start


def measure_cells(n_tasks: int, rounds: int) -> Figures:
    """Measures a graph of NASNet-like cells."""
    name = f"cells, {len(cell_graph(n_tasks).tasks):,} tasks"
    return measure(name, lambda: cell_graph(n_tasks), time_graph, rounds)[0]


def warm_up(device: str) -> FirstCall:
    """Compiles a tiny model, so that no figure includes the import of torch's compiler."""
    x = torch.randn(2, 2, device=device)
    return first_call(Example("warm-up", torch.nn.ReLU(), (x,)))


def targets(
    models: Sequence[Figures], large: Sequence[Figures], cells: Sequence[Figures], exponent: float
) -> list[Target]:
    """The targets; for a model, of the time that a user waits."""
    in_first_call = "seconds in the first call"
    paid = [(f.name, f.first_calls) for f in large if f.first_calls is not None]
    chosen = [(f.name, f.choosing_share) for f in models if f.choosing_share is not None]
    biggest = cells[-1]
    return [
        *(
            Target(f"{name}: {in_first_call}", p.nimble_seconds.median, LARGE_TARGET_SECONDS)
            for name, p in paid
        ),
        Target(
            f"{biggest.name}: seconds in all",
            biggest.total_seconds.median,
            CELLS_TARGET_SECONDS,
            strict=True,
        ),
        *(
            Target(f"{name}: choosing for an H100, of a first call", share, CHOOSING_TARGET)
            for name, share in chosen
        ),
        Target("growth exponent, cells: seconds in all", exponent, EXPONENT_TARGET, strict=True),
    ]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = selecting_parser(__doc__, ["nasnet_a_mobile", LARGE], ["nimble"])
    options.add_argument("--peers", nargs="*", default=[], help="whose first calls to time too")
    options.add_argument(
        "--tasks",
        type=int,
        nargs="+",
        default=[1000, 5000, 20000],
        help="sizes of synthetic graphs, two or more",
    )
    options.add_argument("--rounds", type=at_least_one, default=5, help="runs of the stages")
    options.add_argument(
        "--first-calls", type=at_least_one, default=3, help="whole compiles of a model"
    )
    args = options.parse_args(argv)
    if len(set(args.tasks)) < 2:
        options.error("--tasks takes two sizes or more: growth is fitted to them")
    refuse_unknown_peers(options, args.peers, args.device)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, writes; 0."""
    args = _parse(argv)
    warm_up(args.device)
    cases = [(name, batch) for name in args.models for batch in args.batch or [None]]
    models: list[tuple[str, Figures]] = []
    cells: list[Figures] = []
    with progress("compile time", len(cases) + len(args.tasks)) as begin:
        for name, batch in cases:
            begin(name)
            models += [(name, figures) for figures in measure_model(name, batch, args)]
        for n_tasks in sorted(args.tasks):
            begin(f"{n_tasks} tasks")
            cells.append(measure_cells(n_tasks, args.rounds))
    totals = [f.total_seconds.median for f in cells]
    exponent = growth_exponent([f.n_tasks for f in cells], totals)
    figures = [*(f for _, f in models), *cells]
    print_table(
        "From ATen graph, or synthetic TaskGraph, to loaded module",
        ["", *(f.name.replace(", ", "\n") for f in figures)],
        [count_rows(figures), stage_rows(figures), total_rows(figures), peer_rows(figures)],
    )
    results = {"graphs": figures, "growth_exponent": exponent}
    large = [f for name, f in models if name == LARGE]
    every = [f for _, f in models]
    finish("compile_time", args, results, targets(every, large, cells, exponent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
