"""Emitted texts broken on purpose: each differs in one record, wait, fork or join.

Not every mutant is illegal: a wait may come earlier than it must. Which are is for
`tests.support.text_oracle` to say.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.support.mutants import sample

_LINE = re.compile(r"^ +(?:e\.(?P<recorded>\w+)\.record|(?P<waits>s\d+)\.wait_event)\(.*\)$")
_STREAM, _EVENT = re.compile(r"\bs\d+\b"), re.compile(r"\be\.\w+")


@dataclass(frozen=True)
class TextMutant:
    """A text with one change.

    Attributes:
        kind: what was changed, and how: "join moved".
        description: the line, and where it stands now.
        text: the module.
    """

    kind: str
    description: str
    text: str


@dataclass(frozen=True)
class _Body:
    """The lines of a module, and the positions before which a line of `call` may stand."""

    lines: list[str]
    places: range

    @staticmethod
    def of(text: str) -> "_Body":
        lines = text.split("\n")
        first = lines.index("    inputs.clear()") + 2
        last = next(i for i, line in enumerate(lines) if line.startswith("    return ("))
        return _Body(lines, range(first, last + 1))

    def synchronizations(self) -> Iterator[tuple[str, int]]:
        """Each record and wait: what it is, and where."""
        for at in self.places:
            match = _LINE.match(self.lines[at])
            if match is not None:
                yield _kind(self.lines[at], match), at


Edit = tuple[str, Callable[[], list[str]]]
"""A change in words, and what makes the lines."""


def text_mutants(text: str, limit: int | None = None, seed: int = 0) -> Iterator[TextMutant]:
    """Texts with one synchronization dropped, moved, doubled, or of another stream or event.

    Args:
        text: an emitted module.
        limit: how many of each kind; None for all of them.
        seed: chooses among them where there are more.
    """
    body, chooser = _Body.of(text), Random(seed)
    for kind in KINDS:
        for description, make in sample(_edits(body, kind), limit, chooser):
            yield TextMutant(kind, description, "\n".join(make()))


def _edits(body: _Body, kind: str) -> Iterator[Edit]:
    what, _, how = kind.partition(" ")
    for found, at in body.synchronizations():
        if found == what:
            yield from EDITS[how](body, at)


def _kind(line: str, match: re.Match[str]) -> str:
    if "e.fork" in line:
        return "fork"
    if match["recorded"]:
        return "record"
    return "wait" if line.startswith("        ") else "join"


def _dropped(body: _Body, at: int) -> Iterator[Edit]:
    yield f"{body.lines[at].strip()} is gone", partial(_without, body.lines, at)


def _without(lines: list[str], at: int) -> list[str]:
    return lines[:at] + lines[at + 1 :]


def _moved(body: _Body, at: int) -> Iterator[Edit]:
    for place in body.places:
        if place not in (at, at + 1):
            yield _where(body, at, place), partial(_put, body.lines, at, place, keep=False)


def _doubled(body: _Body, at: int) -> Iterator[Edit]:
    for place in body.places:
        yield _where(body, at, place), partial(_put, body.lines, at, place, keep=True)


def _where(body: _Body, at: int, place: int) -> str:
    return f"{body.lines[at].strip()} stands before {body.lines[place].strip()}"


def _put(lines: list[str], at: int, place: int, *, keep: bool) -> list[str]:
    """The line also, or only, before that at a place, in its block."""
    neighbour = lines[place]
    indent = neighbour[: len(neighbour) - len(neighbour.lstrip())]
    put = [*lines[:place], indent + lines[at].strip(), *lines[place:]]
    return put if keep else _without(put, at + (place <= at))


def _redirected(name: re.Pattern[str]) -> Callable[[_Body, int], Iterator[Edit]]:
    """One name of a line replaced by each other of its kind that synchronizes."""

    def edits(body: _Body, at: int) -> Iterator[Edit]:
        known = {n for _, i in body.synchronizations() for n in name.findall(body.lines[i])}
        for other in sorted(known.difference(name.findall(body.lines[at]))):
            line = name.sub(other, body.lines[at])
            replaced = partial(_replaced, body.lines, at, line)
            yield f"{body.lines[at].strip()} is {line.strip()}", replaced

    return edits


def _replaced(lines: list[str], at: int, line: str) -> list[str]:
    return [*lines[:at], line, *lines[at + 1 :]]


EDITS: dict[str, Callable[[_Body, int], Iterator[Edit]]] = {
    "dropped": _dropped,
    "moved": _moved,
    "doubled": _doubled,
    "of another stream": _redirected(_STREAM),
    "of another event": _redirected(_EVENT),
}
"""Each way to change a line with what finds its edits."""

KINDS = tuple(f"{what} {how}" for what in ("fork", "record", "wait", "join") for how in EDITS)
