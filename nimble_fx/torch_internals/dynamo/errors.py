"""Errors of this project that Dynamo passes to the user unchanged."""

from types import FrameType
from typing import Any

from nimble_fx.errors import NimbleError
from nimble_fx.torch_internals.dynamo.names import ShortenTraceback

_HINT = "\nSet TORCHDYNAMO_VERBOSE=1"
"""The beginning of what Dynamo appends to messages: a stack trace is of use for its own errors."""


def for_user(error: NimbleError, first_useful_frame: FrameType | None = None) -> ShortenTraceback:
    """A copy of the error that Dynamo does not wrap in a BackendCompilerFailed.

    Args:
        error: the error to raise from a backend. The copy is an instance of its class, prints under
            its name and unpickles as one.
        first_useful_frame: Dynamo cuts the traceback off above this frame; None leaves it whole.
    """
    kind, attributes = type(error), dict(vars(error))

    def reduce(shown: ShortenTraceback) -> tuple[Any, ...]:
        return kind, (str(shown),), attributes

    def text(shown: ShortenTraceback) -> str:
        return str(shown.args[0]).partition(_HINT)[0].rstrip()

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    methods = {"__reduce__": reduce, "__str__": text}
    cls = type(kind.__name__, (ShortenTraceback, kind), {**names, **methods})
    shown: ShortenTraceback = cls(str(error), first_useful_frame=first_useful_frame)
    shown.__dict__.update(attributes)
    return shown
