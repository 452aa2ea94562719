"""Distinct names, made by numbering those that collide."""

from collections.abc import Sequence


def unique(names: Sequence[str], taken: set[str]) -> list[str]:
    """`names`, with a number appended to those that are taken or repeated."""
    taken, chosen = set(taken), []
    for name in names:
        candidate, n = name, 1
        while candidate in taken:
            candidate, n = f"{name}_{n}", n + 1
        taken.add(candidate)
        chosen.append(candidate)
    return chosen
