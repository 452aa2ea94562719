"""Counts and tables as text."""

from collections.abc import Sequence


def plural(n: int, noun: str) -> str:
    """A number with its noun: "1 task", "2 tasks"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line for each row, with the columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
