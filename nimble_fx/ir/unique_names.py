"""Names that are distinct, as Python needs them."""

from collections.abc import Sequence


def unique(names: Sequence[str], taken: set[str]) -> list[str]:
    """`names`, with a number behind those that are taken or come twice."""
    taken, chosen = set(taken), []
    for name in names:
        candidate, n = name, 1
        while candidate in taken:
            candidate, n = f"{name}_{n}", n + 1
        taken.add(candidate)
        chosen.append(candidate)
    return chosen
