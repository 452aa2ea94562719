"""The common part of `bench.inference` and `bench.training`: compare, print and write each row."""

import argparse
import gc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from functools import partial
from math import inf
from os import cpu_count
from time import monotonic
from typing import Any

import torch
from torch._inductor import config

from bench.command_line.console import Begin, print_table, progress, say
from bench.command_line.record import Target, finish, keep
from bench.command_line.selection import at_least_one, chosen, selecting_parser, zoo
from bench.measuring.timing import Spread
from bench.peers.baselines import ALL_PEERS, Compile, peers, policies, refuse_unknown_peers
from bench.peers.comparison_case import Contest, failed, hold
from bench.peers.side_by_side import Died, side_by_side
from bench.tables.rows import OURS, Result, Row

HEADER = ("", "a call", f"times {OURS}'s", "off float64", "same bits", "first call, s")

ON_A_CPU = (
    "On a CPU tasks run one after another in launch order: there is nothing for streams to gain, "
    "and schedules differ by launch order and noise alone."
)

CPU_LIMIT = 1.03
"""The limit on a CPU for nimble_fx's time over eager's and aot_eager's, with the same operators."""


def compare(name: str, description: str | None, training: bool, argv: Sequence[str] | None) -> int:
    """Runs the command; returns 0, or 1 if a contestant failed or no model was reached.

    Args:
        name: the command's name.
        description: the text of `--help`.
        training: whether iterations have a backward.
        argv: the arguments; None for the process's arguments.
    """
    args = _parse(name, description, training, argv)
    contests = _contests(args, training)
    rows: dict[int, Row] = {}
    with (
        progress(args.name, len(contests)) as begin,
        closing(_rows(args, training, contests, begin)) as held,
    ):
        for i, row in held:
            rows[i] = row
            print_row(row)
            keep(name, args, results(rows, contests), targets(rows, args.device), args.name)
    if not rows:
        say("No model was reached in time: nothing is written.")
        return 1
    if torch.device(args.device).type == "cpu":
        say(ON_A_CPU)
    finish(name, args, results(rows, contests), targets(rows, args.device), args.name)
    return int(any(result.error for row in rows.values() for result in row.results.values()))


def _parse(
    name: str, description: str | None, training: bool, argv: Sequence[str] | None
) -> argparse.Namespace:
    options = selecting_parser(description, zoo(), [OURS, "nimble", "serial"])
    options.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME",
        help=f"what else to compare with: {', '.join(ALL_PEERS)}; all that are here if not given",
    )
    options.add_argument(
        "--rounds", type=at_least_one, default=15, help="samples of each contestant"
    )
    options.add_argument("--name", default=name, help="what the results are kept under")
    options.add_argument("--minutes", type=float, help="begin no model after so long")
    options.add_argument(
        "--jobs",
        type=at_least_one,
        default=1,
        help="models compiled side by side, each by a process of its own; timed one at a time",
    )
    args = options.parse_args(argv)
    if args.peers is None:
        args.peers = list(peers(torch.device(args.device), training))
    refuse_unknown_peers(options, args.peers, args.device, training)
    return args


def _contestants(args: argparse.Namespace, training: bool) -> dict[str, Compile]:
    """Eager, which the others are compared with, and the selected contestants."""
    there = peers(torch.device(args.device), training)
    wanted = {name: there[name] for name in there if name in ("eager", *args.peers)}
    return wanted | policies(args.policies)


def _contests(args: argparse.Namespace, training: bool) -> list[Contest]:
    """The selected contests, in order."""
    device = torch.device(args.device)
    return [
        Contest(model, form, batch, training, device, args.rounds)
        for model, form, batch in chosen(args, training)
    ]


def _rows(
    args: argparse.Namespace, training: bool, contests: Sequence[Contest], begin: Begin
) -> Generator[tuple[int, Row], None, None]:
    """Yields the rows that are reached in time, each with its contest's number."""
    end = inf if args.minutes is None else monotonic() + 60 * args.minutes
    if args.jobs > 1:
        yield from _rows_side_by_side(args, training, contests, end, begin)
        return
    contestants = _contestants(args, training)
    for i, contest in enumerate(contests):
        if monotonic() > end:
            return
        begin(contest.title)
        row = hold(contest, contestants)
        gc.collect()
        yield i, row


def _rows_side_by_side(
    args: argparse.Namespace, training: bool, contests: Sequence[Contest], end: float, begin: Begin
) -> Iterator[tuple[int, Row]]:
    work = partial(_hold_apart, args, training)
    with closing(
        side_by_side(work, len(contests), args.jobs, end, lambda i: begin(contests[i].title))
    ) as held:
        for i, row in held:
            yield i, failed(contests[i], row.how) if isinstance(row, Died) else row


def _hold_apart(
    args: argparse.Namespace, training: bool, i: int, wait_for_turn: Callable[[], None]
) -> Row:
    """Runs a contest in a process of its own, which selects it again: lambdas cannot be sent."""
    share = max(1, (cpu_count() or 1) // args.jobs)
    config.compile_threads = min(config.compile_threads or share, share)
    return hold(_contests(args, training)[i], _contestants(args, training), wait_for_turn)


def results(rows: Mapping[int, Row], contests: Sequence[Contest]) -> dict[str, Any]:
    """The results to write: rows, by the numbers of their contests, and models not reached."""
    left = [contest.title for i, contest in enumerate(contests) if i not in rows]
    return {"rows": list(rows.values()), "not_reached": left}


def targets(rows: Mapping[int, Row], device: str) -> list[Target]:
    """The targets on a CPU, where streams gain nothing: nimble_fx must cost nothing either."""
    if torch.device(device).type != "cpu":
        return []
    return [
        Target(f"{row.title}: {OURS} / {other}", ratio.median, CPU_LIMIT)
        for row in rows.values()
        for other in ("eager", "aot_eager")
        if (ratio := row.ratio(OURS, over=other)) is not None
    ]


def print_row(row: Row) -> None:
    """Prints a line for each contestant: time, ratio to ours in the same rounds, accuracy."""
    lines = [_line(row, name, result) for name, result in row.results.items()]
    padded = [[*line, *[""] * (len(HEADER) - len(line))] for line in _floor_lines(row)]
    n_rounds = max((len(result.samples) for result in row.results.values()), default=0)
    print_table(f"{row.title}: {n_rounds} rounds", HEADER, [lines, padded])
    for name, result in row.results.items():
        if result.error is not None:
            say(f"{name} FAILED: {result.error}", good=False)
        if result.note is not None:
            say(f"{name}: {result.note}", good=False)


def _line(row: Row, name: str, result: Result) -> list[str]:
    if result.error is not None:
        return [name, "FAILED", *["-"] * (len(HEADER) - 2)]
    over = row.ratio(name, over=OURS)
    return [
        name,
        Spread.of(result.samples).milliseconds(),
        "-" if over is None else over.ratio(),
        f"{result.distance:.1e}",
        "yes" if result.same_bits else "no",
        f"{result.first_seconds:.1f}",
    ]


def _floor_lines(row: Row) -> list[list[str]]:
    if row.floor is None:
        return [["floor", f"FAILED: {row.floor_error}"]]
    total, path, n_tasks, n_path = astuple(row.floor)
    return [
        ["all tasks, one by one", f"{1e3 * total:.2f} ms"],
        ["longest path of tasks", f"{1e3 * path:.2f} ms"],
        ["tasks / longest path", f"{n_tasks} / {n_path} = {row.floor.parallelism:.2f}"],
    ]
