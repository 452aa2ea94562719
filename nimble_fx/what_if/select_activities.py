"""Selects activities for an edit: by a predicate, by name, or by what bounds them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal, get_args

from nimble_fx.errors import OptionError
from nimble_fx.simulation.discrete_event import Activity

Select = str | Sequence[str] | Callable[[Activity], bool]
"""A predicate; or a `Limit`, a name, a glob, a part of names; or a list of such."""

Limit = Literal["compute", "memory"]
"""The resource that bounds a kernel's time: operations, or memory traffic."""


_N_COMPARED = 1000
"""How many names a message's hint is looked for in, which takes about a millisecond each."""


def selected(
    activities: Sequence[Activity], select: Select, limits: Mapping[str, Limit]
) -> frozenset[str]:
    """The names of the selected activities.

    A text is "compute" or "memory", or else the first of these that matches: a name, a glob for
    whole names, a part of names. If it matches activities on the host and on the device, it selects
    those on the device. Each item of a list must match something.

    Args:
        activities: all activities.
        select: the selection.
        limits: what bounds each kernel, by its name.

    Raises:
        OptionError: nothing is selected; the message has similar names.
    """
    if isinstance(select, str):
        for found in _readings(activities, select, limits):
            if found:
                return frozenset(a.name for a in found if a.engine) or frozenset(
                    a.name for a in found
                )
        raise OptionError(f"{select!r} selects no activity; {_near(activities, select)}")
    if isinstance(select, (list, tuple)) and select:
        return frozenset().union(*(selected(activities, each, limits) for each in select))
    if not callable(select):
        raise OptionError(
            f"select={select!r:.99}: it takes a text, a list of texts, or a function of an Activity"
        )
    names = frozenset(activity.name for activity in activities if select(activity))
    if not names:
        raise OptionError(f"the predicate holds for none of the {len(activities)} activities")
    return names


def _readings(
    activities: Sequence[Activity], text: str, limits: Mapping[str, Limit]
) -> Iterator[list[Activity]]:
    if text in get_args(Limit):
        yield [a for a in activities if limits.get(a.name) == text]
        return
    yield [a for a in activities if a.name == text]
    yield [a for a in activities if fnmatchcase(a.name, text)]
    if text:
        yield [a for a in activities if text in a.name]


def _near(activities: Iterable[Activity], text: str) -> str:
    """A hint with similar names and words in names."""
    if text in get_args(Limit):
        return f"no kernel is {text}-bound"
    found = (re.sub(r" #\d+$", "", activity.name) for activity in activities)
    names = list(islice(dict.fromkeys(found), _N_COMPARED))
    words = dict.fromkeys(word for name in names for word in (name, *re.findall(r"\w+", name)))
    is_glob = any(character in text for character in "*?[")
    near = [] if is_glob else get_close_matches(text, words, n=3, cutoff=0.6)
    if not names:
        return "the run has none"
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are {', '.join(map(repr, names[:3]))}{', ...' if len(names) > 3 else ''}"
