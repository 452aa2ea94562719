"""Artifacts in PyTorch's structured log, which TORCH_TRACE=directory writes and tlparse shows."""

from collections.abc import Callable

from nimble_fx.torch_internals.names import lookup

_trace_structured = lookup("torch._logging.trace_structured")


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Adds a text to the structured log under the current compile, if the log is on.

    Args:
        name: the artifact's name in the log.
        text: returns the text; called only if the log is on.
    """
    _trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=text
    )
