"""Dynamo's counters: events of this project, in a group "nimble", and PyTorch's graph breaks."""

import re
from collections import Counter


def count_event(event: str) -> None:
    """Adds one to `torch._dynamo.utils.counters["nimble"][event]`."""
    _counters()["nimble"][event] += 1


def graph_breaks() -> Counter[str]:
    """The number of graph breaks so far, by reason: what, why, and Dynamo's first hint."""
    reasons = Counter[str]()
    for text, n in _counters()["unimplemented"].items():
        lines = text.partition("\n\n")[0].splitlines()[:3]
        parts = [re.sub(r"^\s*(Explanation|Hint): ", "", line).rstrip(". ") for line in lines]
        reasons[". ".join(parts)] += n
    return reasons


def _counters() -> dict[str, Counter[str]]:
    from torch._dynamo.utils import counters  # takes a second, and a user may never compile

    return counters
