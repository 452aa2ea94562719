"""Random ATen programs, drawn from the grammar."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.grammar import (
    IN_PLACE,
    PRODUCTIONS,
    RANDOM,
    SHAPES,
    AtenProgram,
    Operand,
    Production,
    Returned,
)
from tests.grammar.kinds import READABLE_AS

_LIKELY = (*PRODUCTIONS, *SHAPES, *IN_PLACE, *IN_PLACE, *RANDOM)
"""Memory that is shared, memory that is overwritten and random numbers are what goes wrong."""

_BACK = (0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7)
"""How many values of its kind are newer than an operand: mostly few, as in a model."""

_MAX_INPUTS_OF_A_KIND = 2
_KEPT = st.integers(0, 31)
"""Whether a statement is kept: not if it is 0, which is where shrinking ends."""


@st.composite
def aten_programs(
    draw: st.DrawFn, max_steps: int = 15, rows: Sequence[Production] = _LIKELY
) -> AtenProgram:
    """Programs with branches, views, writes to values, views and inputs, and random numbers.

    An operand is a recent value of its kind, or a new input. Outputs are values, inputs, the same
    value twice, or no tensors.
    """
    draft = _Draft()
    steps = st.integers(0, len(rows) - 1)
    for _ in range(draw(st.integers(1, max_steps))):
        draft.add(draw, rows[draw(steps)])
    return draft.program(draft.returns(draw))


@dataclass(frozen=True)
class _Value:
    """A value, and the new tensors in whose memory it may lie."""

    name: str
    kind: str
    memory: frozenset[str]


@dataclass(frozen=True)
class _Step:
    """A statement, and the names that it uses and makes; it may be left out."""

    line: str
    uses: frozenset[str]
    makes: tuple[str, ...]
    left_out: bool


@dataclass
class _Draft:
    """A program to which statements are added; the newest value of a kind is the last."""

    inputs: list[tuple[str, str]] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    values: list[_Value] = field(default_factory=list)

    def add(self, draw: st.DrawFn, production: Production) -> None:
        """Adds a statement, and the inputs that it wants."""
        operands: list[_Value] = []
        for place in production.operands:
            operands.append(self._operand(draw, place, production.operands, operands))
        marked = zip(production.operands, operands, strict=True)
        aliased = frozenset().union(*(v.memory for place, v in marked if place.aliased))
        first = len(self.values) - len(self.inputs)
        makes = tuple(f"t{first + i}" for i in range(len(production.results)))
        used = [value.name for value in operands]
        left_out = draw(_KEPT) == 0
        self.steps.append(_Step(production.line(makes, used), frozenset(used), makes, left_out))
        for name, kind in zip(makes, production.results, strict=True):
            self.values.append(_Value(name, kind, aliased | {name}))

    def returns(self, draw: st.DrawFn) -> list[Returned]:
        """Some of the values, newest first; now and then one that is no tensor."""
        names = [value.name for value in reversed(self.values) if value.kind != "_"]
        chosen: list[Returned] = []
        for place in draw(st.lists(st.integers(0, 23), min_size=1, max_size=5)):
            chosen.append((None, 7)[place % 2] if place > 21 else names[place % len(names)])
        return chosen

    def program(self, returns: Iterable[Returned]) -> AtenProgram:
        """The program without the statements that are left out and what depends on them.

        Leaving one out changes no operand of another, so a failing program shrinks line by line.
        """
        known = {name for name, _ in self.inputs}
        lines: list[str] = []
        used: set[str] = set()
        for step in self.steps:
            if not step.left_out and step.uses <= known:
                lines.append(step.line)
                known.update(step.makes)
                used |= step.uses
        returned = tuple(name for name in returns if not isinstance(name, str) or name in known)
        inputs = [(name, kind) for name, kind in self.inputs if name in used or name in returned]
        return AtenProgram(tuple(inputs), tuple(lines), returned)

    def _operand(
        self, draw: st.DrawFn, place: Operand, places: Sequence[Operand], before: list[_Value]
    ) -> _Value:
        """A value of the kind; what is written lies in no memory that the others lie in."""
        kinds = (place.kind,) if place.aliased else READABLE_AS[place.kind]
        avoided = [
            value.memory
            for earlier, value in zip(places, before, strict=False)
            if earlier.written or place.written
        ]
        fitting = [
            value
            for value in reversed(self.values)
            if value.kind in kinds and all(map(value.memory.isdisjoint, avoided))
        ]
        back = _BACK[draw(st.integers(0, len(_BACK) - 1))]
        if not fitting or (back >= len(fitting) and self._may_be_given(place.kind)):
            return self._given(place.kind)
        return fitting[back % len(fitting)]

    def _may_be_given(self, kind: str) -> bool:
        return [k for _, k in self.inputs].count(kind) < _MAX_INPUTS_OF_A_KIND

    def _given(self, kind: str) -> _Value:
        """A new input."""
        name = f"{kind}{len(self.inputs)}"
        self.inputs.append((name, kind))
        value = _Value(name, kind, frozenset({name}))
        self.values.insert(0, value)
        return value
