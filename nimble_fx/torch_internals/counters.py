"""Dynamo's counters, which have a group "nimble" for this project's events."""


def count_event(event: str) -> None:
    """Adds one to `torch._dynamo.utils.counters["nimble"][event]`."""
    from torch._dynamo.utils import counters  # takes a second, and a user may never compile

    counters["nimble"][event] += 1
