"""Drawn programs run in every way, and schedules broken on purpose before every judge: counts.

    python -m tests.mutation_trials --programs 200

prints them as JSON; `bench.proof` makes tables of them.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.strategies import dags
from tests.support.corpus import schedules_of_models
from tests.support.judges import Count, TextCount, count_text_mutants, judge
from tests.support.mutants import KINDS, Mutant, mutants
from tests.support.playing import first_wrong_order
from tests.support.sums import broken_sums
from tests.support.trials import Trial, trials

N_ORDERS = 10
"""In which the virtual device runs each drawn program."""

MUTANT_ORDERS = 240
"""In which it runs each broken schedule, unless a result is wrong before."""


@dataclass
class Tried:
    """Drawn programs: proved, run on the CPU, and replayed on the virtual device.

    Attributes:
        n_programs: how many were drawn.
        n_schedules: how many schedules were proved, each from its graph and from its text.
        n_interleavings: how many orders the virtual device ran them in.
        streams: how many schedules have so many streams.
        wrong: the trials whose results were not eager's, each as a script.
    """

    n_programs: int = 0
    n_schedules: int = 0
    n_interleavings: int = 0
    streams: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, trial: Trial) -> None:
        """Runs one."""
        self.n_programs += 1
        try:
            graph = trial.check(N_ORDERS)
        except Exception:
            self.wrong.append(trial.as_script())
            raise
        self.n_schedules += 1
        self.n_interleavings += N_ORDERS
        self.streams[graph.n_streams] += 1

    def leave_failure(self, directory: Path) -> Path:
        """Writes the smallest program that failed as a file that can be run; its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "wrong_program.py"
        path.write_text(min(self.wrong, key=len), encoding="utf-8")
        return path


def _only_draw(n: int) -> settings:
    """`n` new examples; what fails is shrunk."""
    return settings(
        max_examples=n,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def try_programs(n: int, first_seed: int) -> tuple[Tried, list[Trial]]:
    """Draws and runs `n` programs; the counts, and every tenth trial with several streams.

    A failure ends it: the counts then hold the scripts of what failed, shrunk.
    """
    tried, kept = Tried(), list[Trial]()

    @seed(first_seed)
    @_only_draw(n)
    @given(trials())
    def run(trial: Trial) -> None:
        tried.add(trial)
        if tried.n_programs % 10 == 0 and trial.schedule()[1].n_streams > 1:
            kept.append(replace(trial, program=trial.program.returning_what_is_unused()))

    try:
        run()
    except Exception:
        if not tried.wrong:
            raise
    return tried, kept


@dataclass
class JudgedMutants:
    """What each judge made of the mutants, by kind.

    Attributes:
        counts: of the oracle, the verifier and PyTorch's sanitizer.
        played: broken ones that the virtual device ran.
        wrong: of these, those with a wrong result or an error.
    """

    counts: dict[str, Count] = field(default_factory=lambda: {kind: Count() for kind in KINDS})
    played: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Count:
        """All kinds together."""
        total = Count()
        for name in vars(total):
            setattr(total, name, sum(getattr(count, name) for count in self.counts.values()))
        return total


@dataclass
class BrokenSums:
    """Broken schedules of programs in which any wrong number shows, on the virtual device.

    Attributes:
        played: how many.
        wrong: of these, those with a wrong result.
        orders: how many orders it took in all until they showed.
    """

    played: int = 0
    wrong: int = 0
    orders: int = 0


def play_broken_sums(n: int, first_seed: int) -> BrokenSums:
    """Of `n` drawn DAGs."""
    counts = BrokenSums()

    @seed(first_seed)
    @_only_draw(n)
    @given(dags(max_vertices=8))
    def run(rows: list[int]) -> None:
        for _, wrong in broken_sums(rows, limit=3, n_orders=MUTANT_ORDERS):
            counts.played += 1
            counts.wrong += wrong is not None
            counts.orders += MUTANT_ORDERS if wrong is None else wrong

    run()
    return counts


def judge_mutants(trials: list[Trial], limit: int) -> JudgedMutants:
    """Breaks the schedules of trials, and of the test models, `limit` times in each way."""
    judged = JudgedMutants()
    for graph in schedules_of_models():
        for mutant in mutants(graph, limit):
            judged.counts[mutant.kind].add(judge(mutant))
    for trial in trials:
        for mutant, broken in _of_trial(judged, trial, limit):
            if broken:
                judged.played[mutant.kind] += 1
                judged.wrong[mutant.kind] += _goes_wrong(trial, mutant)
    return judged


def judge_texts(trials: list[Trial], limit: int, seed: int) -> dict[str, TextCount]:
    """Breaks the texts of trials, and of the test models, `limit` times in each way; by kind."""
    graphs = [*schedules_of_models(), *(trial.schedule()[1] for trial in trials)]
    return count_text_mutants(graphs, limit, seed)


def _of_trial(judged: JudgedMutants, trial: Trial, limit: int) -> Iterator[tuple[Mutant, bool]]:
    _, graph = trial.schedule()
    for mutant in mutants(graph, limit, trial.seed):
        verdict = judge(mutant)
        judged.counts[mutant.kind].add(verdict)
        yield mutant, verdict.broken


def _goes_wrong(trial: Trial, mutant: Mutant) -> bool:
    result, _ = trial.schedule()
    inputs = trial.program.example_inputs(trial.seed)
    left = trial.expected()
    constants = result.constants
    outcome = first_wrong_order(mutant.graph, constants, inputs, left, MUTANT_ORDERS)
    return outcome is not None


def counts(args: argparse.Namespace) -> dict[str, Any]:
    """All that is counted; a wrong result is left as a file."""
    tried, kept = try_programs(args.programs, args.seed)
    if tried.wrong:
        path = tried.leave_failure(args.failures)
        print(f"a result is not eager's; run {path}", file=sys.stderr)
    judged = judge_mutants(kept, args.mutants)
    by_kind = {kind: vars(count) for kind, count in judged.counts.items()}
    texts = judge_texts(kept, args.mutants, args.seed)
    return {
        "programs": vars(tried),
        "mutants": {"by_kind": vars(judged) | {"counts": by_kind}, "total": vars(judged.total)},
        "texts": {kind: vars(count) for kind, count in texts.items()},
        "sums": vars(play_broken_sums(args.sums, args.seed)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Counts, and prints the counts."""
    options = argparse.ArgumentParser(prog="python -m tests.mutation_trials", description=__doc__)
    options.add_argument("--programs", type=int, default=200)
    options.add_argument("--seed", type=int, default=0, help="of the drawn programs")
    options.add_argument("--mutants", type=int, default=3, help="of each kind, a schedule")
    options.add_argument("--sums", type=int, default=300, help="drawn DAGs of sums")
    options.add_argument("--failures", type=Path, default=Path("fuzz_failures"))
    torch.set_num_threads(1)  # the tensors of drawn programs are tiny
    json.dump(counts(options.parse_args(argv)), sys.stdout)


if __name__ == "__main__":
    main()
