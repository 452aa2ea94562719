"""Dynamo's counters, in which this project's events have a group of their own."""


def count_event(event: str) -> None:
    """Adds one to `torch._dynamo.utils.counters["nimble"][event]`."""
    from torch._dynamo.utils import counters  # takes a second, and a user may never compile

    counters["nimble"][event] += 1
