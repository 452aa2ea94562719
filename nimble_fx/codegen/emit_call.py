"""Emits the function that fetches a program's arguments, calls it and packs its results."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from nimble_fx.ir.unique_names import unique

Path = tuple[str, ...]
"""A Python expression in parts, each an attribute or item of those before: ("model", ".bias")."""


def emit_call(arguments: Sequence[Sequence[Path]], returned: str) -> str:
    """The text of a function `call(args, kwargs)`.

    It expects the function `program`, which takes lists and returns a sequence, among its global
    names, and those that paths begin with.

    Args:
        arguments: the items of each list, in terms of `args`, `kwargs` and global names.
        returned: what it returns, in terms of these and `outputs`, which the program returns.

    Cost: linear in the number of paths, quadratic in their lengths.
    """
    paths = list(chain(*arguments))
    shared = _shared(paths)
    taken = {"args", "kwargs", "outputs", "program", *(path[0] for path in paths)}
    names = dict(zip(shared, unique(list(map(_name, shared)), taken), strict=True))
    fetched = [f"    {names[path]} = {_text(path[:-1], names)}{path[-1]}" for path in shared]
    lines = [
        "def call(args, kwargs):",
        '    """Calls the model with inputs like its example\'s, which the caller has checked."""',
        *fetched,
        "    outputs = program(",
        *chain(*[_list([_text(path, names) for path in each]) for each in arguments]),
        "    )",
        f"    return {returned}",
    ]
    return "\n".join(lines) + "\n"


def _list(items: Sequence[str]) -> list[str]:
    """The lines of a list with an item on each."""
    lines = [f"            {each}," for each in items]
    return ["        [", *lines, "        ],"] if items else ["        [],"]


def _shared(paths: Sequence[Path]) -> list[Path]:
    """What several paths begin with and go on from in different ways, shortest first."""
    following = defaultdict[Path, set[str]](set)
    for path in paths:
        for n in range(2, len(path)):
            following[path[:n]].add(path[n])
    return sorted((each for each in following if len(following[each]) > 1), key=len)


def _name(path: Path) -> str:
    """A name for a value: the keys that lead to it."""
    keys = [path[0], *(part for part in path[1:] if part.startswith("["))]
    return "_".join(re.findall(r"\w+", " ".join(keys), re.ASCII))


def _text(path: Path, names: dict[Path, str]) -> str:
    """A path as text, from the longest part of it that has a name."""
    for n in range(len(path), 0, -1):
        if path[:n] in names:
            return names[path[:n]] + "".join(path[n:])
    return "".join(path)
