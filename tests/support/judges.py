"""Three checks of a schedule that share no code: verifier, oracle, PyTorch's sanitizer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nimble_fx.codegen.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.verify import verify, verify_source
from tests.support import oracle, sanitizer
from tests.support.mutants import KINDS, Mutant, mutants
from tests.support.text_mutants import KINDS as TEXT_KINDS
from tests.support.text_mutants import text_mutants
from tests.support.text_oracle import breaks_an_order


def verifier_accepts(graph: TaskGraph) -> bool:
    try:
        verify(graph)
    except ScheduleError:
        return False
    return True


def verifier_accepts_text(text: str, graph: TaskGraph | None = None) -> bool:
    try:
        verify_source(text, graph)
    except ScheduleError:
        return False
    return True


def oracle_accepts(graph: TaskGraph) -> bool:
    return oracle.is_legal(graph)


def sanitizer_accepts(graph: TaskGraph) -> bool:
    return not sanitizer.races(graph)


@dataclass(frozen=True)
class Verdict:
    """What the judges say of one mutant.

    Attributes:
        kind: the mutant's.
        description: the graph and what was changed in it.
        broken: the oracle calls it illegal.
        refused: the verifier does not accept it.
        visible: the oracle names a race or a task outside the call: the sanitizer can see it.
        reported: the sanitizer names a race.
    """

    kind: str
    description: str
    broken: bool
    refused: bool
    visible: bool
    reported: bool

    @property
    def unanimous(self) -> bool:
        return self.broken == self.refused and self.visible == self.reported


def judged(
    graphs: Iterable[TaskGraph], limit: int | None = None, seed: int = 0
) -> Iterator[Verdict]:
    """The verdicts on the mutants of scheduled graphs: of each, at most `limit` of each kind."""
    return (judge(mutant) for graph in graphs for mutant in mutants(graph, limit, seed))


def judge(mutant: Mutant) -> Verdict:
    """One mutant before all three."""
    graph = mutant.graph
    visible = bool(oracle.races(graph) or oracle.outside_call(graph))
    return Verdict(
        kind=mutant.kind,
        description=f"{graph.name}: {mutant.description}",
        broken=visible or not oracle_accepts(graph),
        refused=not verifier_accepts(graph),
        visible=visible,
        reported=not sanitizer_accepts(graph),
    )


@dataclass
class Count:
    """How many mutants of one kind each judge caught.

    Attributes:
        made: how many there were.
        broken: those that the oracle calls illegal.
        caught: of these, those that the verifier refuses.
        false_alarms: legal ones that the verifier refuses.
        visible: those that are illegal for a reason in the sanitizer's sight.
        seen: of these, those that it reports.
        phantoms: what it reports besides.
    """

    made: int = 0
    broken: int = 0
    caught: int = 0
    false_alarms: int = 0
    visible: int = 0
    seen: int = 0
    phantoms: int = 0

    def add(self, verdict: Verdict) -> None:
        self.made += 1
        self.broken += verdict.broken
        self.caught += verdict.broken and verdict.refused
        self.false_alarms += verdict.refused and not verdict.broken
        self.visible += verdict.visible
        self.seen += verdict.visible and verdict.reported
        self.phantoms += verdict.reported and not verdict.visible


def count_verdicts(verdicts: Iterable[Verdict]) -> dict[str, Count]:
    """The verdicts by kind of mutant; kinds that never came up count nothing."""
    counts = {kind: Count() for kind in KINDS}
    for verdict in verdicts:
        counts[verdict.kind].add(verdict)
    return counts


@dataclass
class TextCount:
    """How many mutants of texts of one kind the verifier caught.

    Attributes:
        made: how many there were.
        broken: those that leave an order of the program open, by the oracle.
        caught: of these, those that the verifier refuses as not the graph's.
        caught_alone: those that it refuses from the text alone.
        missed: what it accepts of the broken ones, in words.
    """

    made: int = 0
    broken: int = 0
    caught: int = 0
    caught_alone: int = 0
    missed: list[str] = field(default_factory=list)


def count_text_mutants(
    graphs: Iterable[TaskGraph], limit: int | None = None, seed: int = 0
) -> dict[str, TextCount]:
    """For each kind of mutant of the texts of scheduled graphs, how many the verifier caught."""
    counts = {kind: TextCount() for kind in TEXT_KINDS}
    for graph in graphs:
        for mutant in text_mutants(emit(graph), limit, seed):
            count = counts[mutant.kind]
            count.made += 1
            if breaks_an_order(mutant.text, graph):
                known = not verifier_accepts_text(mutant.text, graph)
                alone = not verifier_accepts_text(mutant.text)
                count.broken += 1
                count.caught += known
                count.caught_alone += alone
                if not (known and alone):
                    count.missed.append(f"{graph.name}: {mutant.description}")
    return counts
