"""Every exception and warning of nimble_fx. A message says what, where in the model, what to do."""

from typing import Any


def in_a_line(error: BaseException) -> str:
    """Its kind, and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class NimbleError(Exception):
    """Anything that nimble_fx raises on purpose."""


class OptionError(NimbleError, ValueError):
    """An option or a mode that does not exist, or a value that it cannot take."""


class UnsupportedError(NimbleError):
    """A graph that cannot be scheduled or frozen. It runs in a slower way, and says why once.

    Attributes:
        node: the operator call that is the reason, by fx's name, if it is one.
        source: the user's line that made it (`nimble_fx.ir.task_graph.Source`), if it is known.
    """

    def __init__(self, message: str, node: str | None = None, source: Any = None) -> None:
        super().__init__(message)
        self.node, self.source = node, source


class FallbackError(UnsupportedError):
    """What would run in a slower way, where `on_fallback="error"` asks for an error."""


class NotPreparedError(NimbleError, RuntimeError):
    """A `Nimble` that was called before `prepare`."""


class ScheduleError(NimbleError):
    """A schedule that could race, free too early or use what is not there: a bug in a pass."""


class PassError(NimbleError):
    """A pass that raised something else; the message says what, and where."""


class FileError(NimbleError):
    """A program file that cannot be read or written, or does not fit this machine."""


class InputError(NimbleError, ValueError):
    """A parameter or an input that is not what a program was made for."""


class OperatorError(NimbleError, RuntimeError):
    """An operator that does not return what its schema or its fake tensors say."""


class StateError(NimbleError, RuntimeError):
    """The model's buffers are not what they were: a warm-up changed them, undoing that failed."""


class NimbleWarning(UserWarning):
    """A compiled model still computes the right thing, but in a slower way than asked for."""
