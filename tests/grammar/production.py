"""A row of the grammar: one statement.

A row is the right-hand side, with the kinds of its operands in braces (see `tests.grammar.kinds`),
and the kinds of its results: `{m}` is read; `{m&}` is one that the results may alias; `{m!}` is
written, and may be aliased too. What is written is never read by the same statement.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_OPERAND = re.compile(r"\{(\w)([&!]?)\}")
_OPERATOR = re.compile(r"aten\.\w+\.\w+")


@dataclass(frozen=True)
class Operand:
    """A place for a value: its kind, and what the statement does to it."""

    kind: str
    mark: str

    @property
    def written(self) -> bool:
        return self.mark == "!"

    @property
    def aliased(self) -> bool:
        return bool(self.mark)


@dataclass(frozen=True)
class Production:
    """A row: the text of a statement's right-hand side, and the kinds of its results."""

    text: str
    results: str

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The places for values, in order."""
        return tuple(Operand(*found) for found in _OPERAND.findall(self.text))

    @property
    def operators(self) -> set[str]:
        """The operators by name, with their overload."""
        return operators_in(self.text)

    def line(self, results: Iterable[str], operands: Iterable[str]) -> str:
        """The statement."""
        names, assigned = iter(operands), ", ".join(results)
        text = _OPERAND.sub(lambda _: next(names), self.text)
        return f"{assigned} = {text}" if assigned else text


def operators_in(text: str) -> set[str]:
    """The operators that a text names: "aten.add.Tensor"."""
    return set(_OPERATOR.findall(text))


def table(rows: Mapping[str, str]) -> tuple[Production, ...]:
    """Rows, one a line, by the kinds of their results; a backslash joins two lines."""
    return tuple(
        Production(" ".join(text.split()), results)
        for results, texts in rows.items()
        for text in texts.strip().splitlines()
    )
