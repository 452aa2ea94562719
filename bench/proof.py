"""Counts which check catches which defect, and measures the cost of the proofs.

Random ATen programs are scheduled, proved twice (as a graph and as the text that runs), run on the
CPU, and replayed on the virtual device in many orders; results are compared with eager's bit by
bit. Schedules are broken on purpose and checked by brute force on the closure of the orders (which
decides what is broken), the verifier, PyTorch's stream sanitizer and the virtual device. Texts are
broken too: a record, wait, fork or join is dropped, moved, repeated, or gets another stream or
event.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.command_line.console import print_table, progress
from bench.command_line.record import Target, finish
from bench.command_line.selection import selecting_parser
from bench.measuring.proving import Cost, Share, cost, cost_rows, share, share_rows

N_PROGRAMS = 2000
N_INTERLEAVINGS = 20_000
VERIFY_TARGET_SECONDS = 0.2
SHARE_TARGET = 0.1

ROOT = Path(__file__).parent.parent

Counts = Mapping[str, Any]
"""As `tests.mutation_trials` prints them."""


def counted(args: argparse.Namespace) -> Counts:
    """The counts of the tests' trials, which run in a separate process."""
    wanted = ("programs", "seed", "mutants", "sums")
    options = [word for name in wanted for word in (f"--{name}", str(getattr(args, name)))]
    failures = ("--failures", str(args.failures.absolute()))
    command = [sys.executable, "-m", "tests.mutation_trials", *options, *failures]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: Counts = json.loads(done.stdout)
    return found


def program_rows(tried: Counts) -> Iterator[list[str]]:
    """The counts of random programs and their runs."""
    yield ["programs drawn", f"{tried['n_programs']:,}"]
    yield ["schedules proved, as graph and as text", f"{tried['n_schedules']:,}"]
    yield ["orders on the virtual device", f"{tried['n_interleavings']:,}"]
    yield ["results that are not eager's", f"{len(tried['wrong']):,}"]
    streams = sorted((int(n), count) for n, count in tried["streams"].items())
    yield ["schedules by streams", ", ".join(f"{n}: {count}" for n, count in streams)]


def mutant_rows(judged: Counts) -> Iterator[list[str]]:
    """A row for each kind of mutant, and one for all."""
    by_kind = judged["by_kind"]
    played, wrong = by_kind["played"], by_kind["wrong"]
    for kind, count in by_kind["counts"].items():
        yield _mutant_row(kind, count, played.get(kind, 0), wrong.get(kind, 0))
    yield _mutant_row("all", judged["total"], sum(played.values()), sum(wrong.values()))


def _mutant_row(kind: str, count: Counts, played: int, wrong: int) -> list[str]:
    figures = (count[name] for name in ("made", "broken", "caught", "false_alarms"))
    return [
        kind,
        *(f"{figure:,}" for figure in figures),
        f"{count['seen']:,} of {count['visible']:,}",
        f"{wrong:,} of {played:,}",
    ]


def text_rows(texts: Counts) -> Iterator[list[str]]:
    """A row for each kind of broken text, and one for all."""
    names = ("made", "broken", "caught", "caught_alone")
    total = {name: sum(count[name] for count in texts.values()) for name in names}
    for kind, count in {**texts, "all": total}.items():
        yield [kind, *(f"{count[name]:,}" for name in names)]


def sum_rows(sums: Counts) -> Iterator[list[str]]:
    """The counts of broken schedules that the virtual device ran."""
    yield ["broken schedules", f"{sums['played']:,}"]
    yield ["with a wrong result", f"{sums['wrong']:,}"]
    yield [
        "orders until it showed, on average",
        f"{sums['orders'] / max(sums['played'], 1):.2f}",
    ]


def report(counts: Counts, costs: list[Cost], shares: list[Share]) -> None:
    """Prints the tables."""
    print_table("Drawn programs", ["", ""], [program_rows(counts["programs"])])
    *kinds, total = mutant_rows(counts["mutants"])
    print_table(
        "Schedules broken on purpose",
        [
            "",
            "made",
            "broken",
            "verifier",
            "false alarms",
            "sanitizer, of visible",
            "wrong, of played",
        ],
        [kinds, [total]],
    )
    print_table(
        "Texts broken on purpose, in one record, wait, fork or join",
        ["", "made", "broken", "verifier, graph known", "verifier, text alone"],
        [text_rows(counts["texts"])],
    )
    print_table(
        "Lost waits and early frees in sums over DAGs, on the virtual device",
        ["", ""],
        [sum_rows(counts["sums"])],
    )
    print_table(
        "Cost of the proofs", ["", "as a graph", "as the text that runs"], [cost_rows(costs)]
    )
    print_table(
        "Share of the proofs in a first call",
        ["", "as a graph", "as text", "of nimble_fx's part", "of the whole"],
        [share_rows(shares)],
    )


def targets(counts: Counts, costs: list[Cost], shares: list[Share]) -> list[Target]:
    """The targets."""
    tried, total = counts["programs"], counts["mutants"]["total"]
    n_short = N_PROGRAMS - tried["n_schedules"]
    n_orders_short = N_INTERLEAVINGS - tried["n_interleavings"]
    n_unseen = total["visible"] - total["seen"]
    return [
        Target("results that are not eager's", len(tried["wrong"]), 0),
        Target("programs short of 2,000", max(0, n_short), 0),
        Target("orders short of 20,000", max(0, n_orders_short), 0),
        Target("broken schedules that the verifier misses", total["broken"] - total["caught"], 0),
        Target("broken texts that the verifier misses", _n_missed(counts["texts"]), 0),
        Target("legal schedules that the verifier refuses", total["false_alarms"], 0),
        Target("visible races that PyTorch's sanitizer misses", n_unseen, 0),
        Target("races that only the sanitizer sees", total["phantoms"], 0),
        *(
            Target(
                f"verify, {c.n_tasks:,} tasks: seconds",
                c.verify_seconds.median,
                VERIFY_TARGET_SECONDS,
                strict=True,
            )
            for c in costs
        ),
        *(Target(f"proofs' share of {s.model}", s.of_whole, SHARE_TARGET) for s in shares),
    ]


def _n_missed(texts: Counts) -> int:
    return sum(len(count["missed"]) for count in texts.values())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = selecting_parser(__doc__, ["nasnet_a_mobile", "nasnet_a_large"])
    options.add_argument("--programs", type=int, default=N_PROGRAMS)
    options.add_argument("--seed", type=int, default=0, help="of the drawn programs")
    options.add_argument("--mutants", type=int, default=3, help="of each kind, a schedule")
    options.add_argument("--sums", type=int, default=300, help="drawn DAGs of sums")
    options.add_argument("--tasks", type=int, nargs="+", default=[1000, 5000, 20000])
    options.add_argument("--rounds", type=int, default=9, help="of each proof that is timed")
    options.add_argument("--failures", type=Path, default=Path("fuzz_failures"))
    return options.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Checks, prints and writes; returns 1 if a result was wrong or a broken schedule missed."""
    args = _parse(argv)
    costs = [cost(n_tasks, args.rounds) for n_tasks in args.tasks]
    batches = args.batch or [None]
    cases = [(name, batch) for name in args.models for batch in batches]
    shares = []
    with progress("first calls", len(cases)) as begin:
        for name, batch in cases:
            begin(name)
            shares.append(share(name, batch, args.device))
    counts = counted(args)
    report(counts, costs, shares)
    results = {
        **counts,
        "costs": costs,
        "shares": [{"of": s, "of_nimble": s.of_nimble, "of_whole": s.of_whole} for s in shares],
    }
    finish("proof", args, results, targets(counts, costs, shares))
    total = counts["mutants"]["total"]
    missed = total["broken"] - total["caught"] + _n_missed(counts["texts"])
    return 1 if counts["programs"]["wrong"] or missed else 0


if __name__ == "__main__":
    sys.exit(main())
