"""Dynamo's counters: events of this project, in a group "nimble", and PyTorch's graph breaks."""

import re
from collections import Counter


def count_event(event: str) -> None:
    """Adds one to `torch._dynamo.utils.counters["nimble"][event]`."""
    _counters()["nimble"][event] += 1


def graph_breaks() -> Counter[str]:
    """The number of graph breaks so far, by reason: what, why, and Dynamo's first hint.

    Dynamo counts a break after which it goes on in one group, and one in which it gives up the
    function in another; some are in both.
    """
    reasons, counters = Counter[str](), _counters()
    for text, n in (counters["graph_break"] + counters["unimplemented"]).items():
        reasons[short_reason(text)] += n
    return reasons


def short_reason(text: str) -> str:
    """What, why, and the first hint, from Dynamo's text on a graph break."""
    lines = text.partition("\n\n")[0].splitlines()[:3]
    parts = [re.sub(r"^\s*(Explanation|Hint): ", "", line).rstrip(". ") for line in lines]
    return ". ".join(filter(None, parts))


def _counters() -> dict[str, Counter[str]]:
    from torch._dynamo.utils import counters  # takes a second, and a user may never compile

    return counters
