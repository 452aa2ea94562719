"""What `bench.inference` and `bench.training` do: hold contests, show and keep each row."""

import argparse
import gc
from collections.abc import Mapping, Sequence

import torch

from bench.contest import Contest, hold
from bench.peers import Compile, peers, policies
from bench.record import Target, finish, keep
from bench.rows import Result, Row
from bench.screen import print_table, progress
from bench.selection import chosen, selecting_parser, zoo
from bench.timing import Spread

CPU_LIMIT = 1.03
"""On a CPU, what nimble may take over eager and aot_eager, which run the same operators."""


def compare(name: str, description: str | None, training: bool, argv: Sequence[str] | None) -> int:
    """Runs the command; 0, or 1 if there is a contestant that failed.

    Args:
        name: the command's, which its results are kept under.
        description: for `--help`.
        training: whether iterations have a backward.
        argv: the arguments; None for those of the process.
    """
    args = _parse(description, argv)
    contestants = _contestants(args, training)
    cases = list(chosen(args, training))
    rows: list[Row] = []
    with progress(name, len(cases)) as begin:
        for model, form, batch in cases:
            contest = Contest(model, form, batch, training, torch.device(args.device), args.rounds)
            begin(contest.title)
            rows.append(hold(contest, contestants))
            gc.collect()
            print_row(rows[-1])
            keep(name, args, {"rows": rows}, targets(rows, args.device))
    finish(name, args, {"rows": rows}, targets(rows, args.device))
    return int(any(result.error for row in rows for result in row.results.values()))


def _parse(description: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    options = selecting_parser(description, zoo(), ["nimble", "serial"])
    options.add_argument(
        "--peers", nargs="*", help="what else to compare with (default: all that are here)"
    )
    options.add_argument("--rounds", type=int, default=15, help="samples of each contestant")
    args = options.parse_args(argv)
    there = list(peers(torch.device(args.device), training=False))
    args.peers = there if args.peers is None else args.peers
    unknown = sorted(set(args.peers).difference(there))
    if unknown:
        options.error(f"no peer {unknown[0]!r} on {args.device}; there are {', '.join(there)}")
    return args


def _contestants(args: argparse.Namespace, training: bool) -> dict[str, Compile]:
    """Eager, which the others are checked against, and what was asked for."""
    there = peers(torch.device(args.device), training)
    wanted = {name: there[name] for name in there if name in ("eager", *args.peers)}
    return wanted | policies(args.policies)


def targets(rows: Sequence[Row], device: str) -> list[Target]:
    """On a CPU, where streams gain nothing, nimble must not cost anything either."""
    if torch.device(device).type != "cpu":
        return []
    return [
        Target(f"{row.title}: nimble / {other}", ratio.median, CPU_LIMIT)
        for row in rows
        for other in ("eager", "aot_eager")
        if (ratio := row.ratio("nimble", over=other)) is not None
    ]


def print_row(row: Row) -> None:
    """A line for each contestant: time, time over nimble's in the same rounds, accuracy."""
    header = ["", "a call", "over nimble", "off float64", "first call, s"]
    lines = [_line(row, name, result) for name, result in row.results.items()]
    print_table(row.title, header, [lines, _floor_lines(row)])


def _line(row: Row, name: str, result: Result) -> list[str]:
    if result.error is not None:
        return [name, f"FAILED: {result.error}", "", "", ""]
    over = row.ratio(name, over="nimble")
    return [
        name,
        Spread.of(result.samples).milliseconds(),
        "-" if over is None else over.ratio(),
        "-" if result.distance is None else f"{result.distance:.1e}",
        "-" if result.first_seconds is None else f"{result.first_seconds:.1f}",
    ]


def _floor_lines(row: Row) -> list[list[str]]:
    if row.floor is None:
        return []
    times: Mapping[str, float] = {
        "all tasks, one by one": row.floor.total_seconds,
        "longest path of tasks": row.floor.path_seconds,
    }
    lines = [[what, f"{1e3 * seconds:.2f} ms", "", "", ""] for what, seconds in times.items()]
    n_tasks, n_path = row.floor.n_tasks, row.floor.n_path
    return [
        *lines,
        ["tasks / longest path", f"{n_tasks} / {n_path} = {n_tasks / n_path:.2f}", "", "", ""],
    ]
