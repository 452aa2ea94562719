"""The measurements of a compile, as data and as table rows with a column for each graph."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.measuring.stages import Seconds, Theory
from bench.measuring.timing import Spread


@dataclass(frozen=True)
class FirstCalls:
    """The times of whole first calls, and nimble_fx's part of each."""

    whole_seconds: Spread
    nimble_seconds: Spread
    share: Spread


@dataclass(frozen=True)
class Figures:
    """All measurements of one graph.

    Attributes:
        name: the graph's name, with its size.
        n_edges: the number of dependencies between tasks.
        theory: the optimal counts; None if they are not computed.
        stage_seconds: the median of each stage.
        total_seconds: the time of all stages.
        first_calls: the first calls of a model; None for a synthetic graph.
        peer_seconds: the time of a whole first call with each other compiler.
        as_in_first_call: whether the stages made the same schedule as the first call.
        choosing_seconds: the time in which "auto" makes and simulates all candidates for a GPU.
    """

    name: str
    n_tasks: int
    n_streams: int
    width: int
    n_waits: int
    n_edges: int
    theory: Theory | None
    stage_seconds: Seconds
    total_seconds: Spread
    first_calls: FirstCalls | None = None
    as_in_first_call: bool | None = None
    peer_seconds: Mapping[str, float] = field(default_factory=dict)
    choosing_seconds: float | None = None

    @property
    def choosing_share(self) -> float | None:
        """The share of selecting a schedule in a first call that includes it."""
        if self.choosing_seconds is None or self.first_calls is None:
            return None
        whole = self.first_calls.whole_seconds.median + self.choosing_seconds
        return self.choosing_seconds / whole


def count_rows(figures: Sequence[Figures]) -> Iterator[list[str]]:
    """Counts, and whether they are optimal."""
    yield ["tasks", *(f"{f.n_tasks:,}" for f in figures)]
    yield ["streams", *(f"{f.n_streams}" for f in figures)]
    yield ["width", *(f"{f.width}" for f in figures)]
    yield ["streams == width", *(_yes_or_no(f.n_streams == f.width) for f in figures)]
    yield ["waits", *(f"{f.n_waits:,}" for f in figures)]
    yield ["orders kept", *(f"{f.n_edges:,}" for f in figures)]
    yield ["|E'| - |M| by networkx", *(_waits_due(f.theory) for f in figures)]
    yield ["waits == |E'| - |M|", *(_has_waits_due(f) for f in figures)]
    yield ["the first call's schedule", *(_yes_or_no(f.as_in_first_call) for f in figures)]


def stage_rows(figures: Sequence[Figures]) -> Iterator[list[str]]:
    """Milliseconds by stage."""
    for stage in dict.fromkeys(stage for f in figures for stage in f.stage_seconds):
        cells = [f.stage_seconds.get(stage) for f in figures]
        yield [f"{stage}, ms", *("-" if s is None else f"{1e3 * s:,.1f}" for s in cells)]


def total_rows(figures: Sequence[Figures]) -> Iterator[list[str]]:
    """Totals, and their share of a whole first call."""
    totals = [f.total_seconds for f in figures]
    yield ["total, ms", *(f"{1e3 * t.median:,.1f}" for t in totals)]
    yield ["  least", *(f"{1e3 * t.min:,.1f}" for t in totals)]
    yield ["  greatest", *(f"{1e3 * t.max:,.1f}" for t in totals)]
    yield _paid("in the first call, ms", figures, lambda p: 1e3 * p.nimble_seconds.median)
    yield _paid("whole first call, ms", figures, lambda p: 1e3 * p.whole_seconds.median)
    yield _paid("share of it, %", figures, lambda p: 1e2 * p.share.median)
    seconds, shares = ([f.choosing_seconds for f in figures], [f.choosing_share for f in figures])
    yield ["choosing for an H100, ms", *("-" if s is None else f"{1e3 * s:,.1f}" for s in seconds)]
    yield ["share of a call with it, %", *("-" if s is None else f"{1e2 * s:.1f}" for s in shares)]


def peer_rows(figures: Sequence[Figures]) -> Iterator[list[str]]:
    """Whole first calls with other compilers."""
    for peer in dict.fromkeys(peer for f in figures for peer in f.peer_seconds):
        cells = [f.peer_seconds.get(peer) for f in figures]
        yield [f"{peer}, s", *("-" if s is None else f"{s:.1f}" for s in cells)]


def _paid(title: str, figures: Sequence[Figures], of: Callable[[FirstCalls], float]) -> list[str]:
    paid = [f.first_calls for f in figures]
    return [title, *("-" if calls is None else f"{of(calls):,.1f}" for calls in paid)]


def _waits_due(theory: Theory | None) -> str:
    return "-" if theory is None else f"{theory.n_fewest_edges:,} - {theory.n_matched:,}"


def _has_waits_due(figures: Figures) -> str:
    due = None if figures.theory is None else figures.theory.n_waits_due
    return _yes_or_no(None if due is None else figures.n_waits == due)


def _yes_or_no(answer: bool | None) -> str:
    return "-" if answer is None else "yes" if answer else "NO"
