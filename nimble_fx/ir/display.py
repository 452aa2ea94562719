"""Counts and tables as text."""

import re
from collections.abc import Sequence

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Control characters, which a terminal obeys, except white space, and what is no text."""


def printable(text: str) -> str:
    """A line of code, or a file's name, as it may be shown and saved."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def plural(n: int, noun: str) -> str:
    """A number with its noun: "1 task", "2 tasks"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line for each row, with the columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
