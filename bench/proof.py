"""Every schedule is checked, and the checks are checked: how much of both, and what it costs.

Drawn ATen programs are scheduled, proved twice (as a graph and as the text that runs), run on the
CPU and replayed on the virtual device in many orders, against eager bit for bit. Schedules are
broken on purpose and put before every judge: brute force on the closure of the orders (which says
what is broken), the verifier, PyTorch's stream sanitizer and the virtual device. Texts are broken
too: a record, wait, fork or join is dropped, moved, doubled, or of another stream or event.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from bench.console import print_table, progress, say
from bench.mutation_trials import (
    BrokenSums,
    JudgedMutants,
    Tried,
    judge_mutants,
    judge_texts,
    play_broken_sums,
    try_programs,
)
from bench.proving import Cost, Share, cost, cost_rows, share, share_rows
from bench.record import Target, finish
from bench.selection import selecting_parser
from tests.support.judges import Count, TextCount

N_PROGRAMS = 2000
N_INTERLEAVINGS = 20_000
VERIFY_TARGET_SECONDS = 0.2
SHARE_TARGET = 0.1


def program_rows(tried: Tried) -> Iterator[list[str]]:
    """Counts of what was drawn and run."""
    yield ["programs drawn", f"{tried.n_programs:,}"]
    yield ["schedules proved, as graph and as text", f"{tried.n_schedules:,}"]
    yield ["orders on the virtual device", f"{tried.n_interleavings:,}"]
    yield ["results that are not eager's", f"{len(tried.wrong):,}"]
    streams = ", ".join(f"{n}: {count}" for n, count in sorted(tried.streams.items()))
    yield ["schedules by streams", streams]


def mutant_rows(judged: JudgedMutants) -> Iterator[list[str]]:
    """A row for each kind of mutant."""
    for kind, count in judged.counts.items():
        yield _mutant_row(kind, count, judged.played[kind], judged.wrong[kind])


def _mutant_row(kind: str, count: Count, played: int, wrong: int) -> list[str]:
    return [
        kind,
        f"{count.made:,}",
        f"{count.broken:,}",
        f"{count.caught:,}",
        f"{count.false_alarms:,}",
        f"{count.seen:,} of {count.visible:,}",
        f"{wrong:,} of {played:,}",
    ]


def text_rows(texts: Mapping[str, TextCount]) -> Iterator[list[str]]:
    """A row for each kind of broken text, and one of all."""
    total = TextCount()
    for kind, count in texts.items():
        yield _text_row(kind, count)
        for name in ("made", "broken", "caught", "caught_alone"):
            setattr(total, name, getattr(total, name) + getattr(count, name))
    yield _text_row("all", total)


def _text_row(kind: str, count: TextCount) -> list[str]:
    figures = (count.made, count.broken, count.caught, count.caught_alone)
    return [kind, *(f"{figure:,}" for figure in figures)]


def sum_rows(sums: BrokenSums) -> Iterator[list[str]]:
    """Counts of broken schedules that the virtual device ran."""
    yield ["broken schedules", f"{sums.played:,}"]
    yield ["with a wrong result", f"{sums.wrong:,}"]
    yield ["orders until it showed, on average", f"{sums.orders / max(sums.played, 1):.2f}"]


def report(
    tried: Tried,
    judged: JudgedMutants,
    texts: Mapping[str, TextCount],
    sums: BrokenSums,
    costs: list[Cost],
    shares: list[Share],
) -> None:
    """Prints the tables."""
    print_table("Drawn programs", ["", ""], [program_rows(tried)])
    total = _mutant_row("all", judged.total, judged.played.total(), judged.wrong.total())
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
        [mutant_rows(judged), [total]],
    )
    print_table(
        "Texts broken on purpose, in one record, wait, fork or join",
        ["", "made", "broken", "verifier, graph known", "verifier, text alone"],
        [text_rows(texts)],
    )
    print_table(
        "Lost waits and early frees in sums over DAGs, on the virtual device",
        ["", ""],
        [sum_rows(sums)],
    )
    print_table(
        "Cost of the proofs", ["", "as a graph", "as the text that runs"], [cost_rows(costs)]
    )
    print_table(
        "Share of the proofs in a first call",
        ["", "as a graph", "as text", "of nimble_fx's part", "of the whole"],
        [share_rows(shares)],
    )


def targets(
    tried: Tried,
    judged: JudgedMutants,
    texts: Mapping[str, TextCount],
    costs: list[Cost],
    shares: list[Share],
) -> list[Target]:
    """What the figures should be."""
    total = judged.total
    return [
        Target("results that are not eager's", len(tried.wrong), 0),
        Target("programs short of 2,000", max(0, N_PROGRAMS - tried.n_schedules), 0),
        Target("orders short of 20,000", max(0, N_INTERLEAVINGS - tried.n_interleavings), 0),
        Target("broken schedules that the verifier misses", total.broken - total.caught, 0),
        Target("broken texts that the verifier misses", _n_missed(texts), 0),
        Target("legal schedules that the verifier refuses", total.false_alarms, 0),
        Target("visible races that PyTorch's sanitizer misses", total.visible - total.seen, 0),
        Target("races that only the sanitizer sees", total.phantoms, 0),
        *(
            Target(f"verify, {c.n_tasks:,} tasks: seconds", c.verify_seconds.median, limit, True)
            for c in costs
            for limit in [VERIFY_TARGET_SECONDS]
        ),
        *(Target(f"proofs' share of {s.model}", s.of_whole, SHARE_TARGET) for s in shares),
    ]


def _n_missed(texts: Mapping[str, TextCount]) -> int:
    return sum(len(count.missed) for count in texts.values())


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
    """Checks, prints, writes; 1 if a result was wrong or a broken schedule was missed."""
    args = _parse(argv)
    costs = [cost(n_tasks, args.rounds) for n_tasks in args.tasks]
    batches = args.batch or [None]
    cases = [(name, batch) for name in args.models for batch in batches]
    shares = []
    with progress("first calls", len(cases)) as begin:
        for name, batch in cases:
            begin(name)
            shares.append(share(name, batch, args.device))
    torch.set_num_threads(1)  # the tensors of drawn programs are tiny
    tried, kept = try_programs(args.programs, args.seed)
    if tried.wrong:
        path = tried.leave_failure(args.failures)
        say(f"a result is not eager's; run {path}", good=False)
    judged = judge_mutants(kept, args.mutants)
    texts = judge_texts(kept, args.mutants, args.seed)
    sums = play_broken_sums(args.sums, args.seed)
    report(tried, judged, texts, sums, costs, shares)
    results = {
        "programs": tried,
        "mutants": {"by_kind": judged, "total": judged.total},
        "texts": texts,
        "sums": sums,
        "costs": costs,
        "shares": [{"of": s, "of_nimble": s.of_nimble, "of_whole": s.of_whole} for s in shares],
    }
    finish("proof", args, results, targets(tried, judged, texts, costs, shares))
    missed = judged.total.broken - judged.total.caught + _n_missed(texts)
    return 1 if tried.wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
