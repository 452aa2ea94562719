"""Measures the cost of proofs: by size, and as a part of the first call of a compiled model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any
from unittest.mock import patch

from bench.measuring.stages import first_call
from bench.measuring.timing import Spread, uncollected_seconds
from bench.models.examples import example
from bench.models.synthetic import BLOCKS_FOR_16_STREAMS, cell_graph
from nimble_fx.codegen.emit import emit
from nimble_fx.pipeline import passes_for, schedule
from nimble_fx.selection import select
from nimble_fx.verify import verify, verify_source


@dataclass(frozen=True)
class Cost:
    """The seconds that the proofs of one schedule take."""

    n_tasks: int
    n_streams: int
    verify_seconds: Spread
    verify_source_seconds: Spread


@dataclass(frozen=True)
class Share:
    """The proofs' share of the first call of a compiled model."""

    model: str
    verify_seconds: float
    verify_source_seconds: float
    nimble_seconds: float
    whole_seconds: float

    @property
    def of_whole(self) -> float:
        """The share of the whole first call."""
        return (self.verify_seconds + self.verify_source_seconds) / self.whole_seconds

    @property
    def of_nimble(self) -> float:
        """The share of nimble_fx's part, from the ATen graph to the loaded module."""
        return (self.verify_seconds + self.verify_source_seconds) / self.nimble_seconds


def cost(n_tasks: int, rounds: int) -> Cost:
    """Measures a graph of cells on 16 streams."""
    traced = cell_graph(n_tasks, BLOCKS_FOR_16_STREAMS)
    graph = schedule(traced, passes_for("nimble", None))
    text = emit(graph)
    return Cost(
        len(graph.launching),
        graph.n_streams,
        Spread.of(uncollected_seconds(partial(verify, graph, traced), rounds)),
        Spread.of(uncollected_seconds(partial(verify_source, text, graph), rounds)),
    )


def share(name: str, batch: int | None, device: str) -> Share:
    """Measures a model of the zoo, in one first call."""
    seconds = {"verify": 0.0, "verify_source": 0.0}

    def watched(proof: str, function: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            start = perf_counter()
            function(*args)
            seconds[proof] += perf_counter() - start

        return run

    built = example(name, batch, device)
    with ExitStack() as watching:
        for proof, function in (("verify", verify), ("verify_source", verify_source)):
            watching.enter_context(patch.object(select, proof, watched(proof, function)))
        call = first_call(built)
    return Share(
        built.title,
        seconds["verify"],
        seconds["verify_source"],
        call.nimble_seconds,
        call.whole_seconds,
    )


def cost_rows(costs: list[Cost]) -> Iterator[list[str]]:
    """A row for each size."""
    for c in costs:
        size = f"{c.n_tasks:,} tasks on {c.n_streams} streams"
        yield [size, c.verify_seconds.milliseconds(), c.verify_source_seconds.milliseconds()]


def share_rows(shares: list[Share]) -> Iterator[list[str]]:
    """A row for each model."""
    for s in shares:
        both = [f"{1e3 * x:,.1f} ms" for x in (s.verify_seconds, s.verify_source_seconds)]
        yield [s.model, *both, f"{s.of_nimble:.1%}", f"{s.of_whole:.2%}"]
