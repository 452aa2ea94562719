"""All exceptions and warnings of nimble_fx.

A message says what is wrong, where in the model, and what to do.
"""

from typing import Any


def one_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class NimbleError(Exception):
    """Base class of all errors that nimble_fx raises."""


class OptionError(NimbleError, ValueError):
    """An unknown option or mode, or a value that is not valid for it."""


class UnsupportedError(NimbleError):
    """Something that nimble_fx cannot do, such as schedule a graph or capture it.

    The backend then falls back, and the error is the reason (see `nimble_fx.fallbacks`).

    Attributes:
        node: the name of the fx node that causes it, if one does.
        source: the user's line that the node is from (`nimble_fx.ir.task_graph.Source`), if known.
    """

    def __init__(self, message: str, node: str | None = None, source: Any = None) -> None:
        super().__init__(message)
        self.node, self.source = node, source


class FallbackError(UnsupportedError):
    """A fallback, raised because of `on_fallback="error"`."""


class NotPreparedError(NimbleError, RuntimeError):
    """A `Nimble` was called before `prepare`."""


class ScheduleError(NimbleError):
    """A schedule with a race, an early free or an undefined name.

    It is a bug in a pass, or in a text or file that was edited.
    """


class PassError(NimbleError):
    """A pass raised an exception that is not a NimbleError; the message says which, and where."""


class FileError(NimbleError):
    """A program file that cannot be read or written, or does not fit this machine."""


class InputError(NimbleError, ValueError):
    """A parameter or an input that does not fit the program."""


class OperatorError(NimbleError, RuntimeError):
    """An operator's result differs from its schema or from its result on fake tensors."""


class RewriteError(NimbleError, RuntimeError):
    """Replaced kernels compute different values than PyTorch's: a bug in a rewrite.

    Only `options={"verify": "values"}` looks for it.
    """


class StateError(NimbleError, RuntimeError):
    """Buffers that a warm-up changed could not be restored."""


class NimbleWarning(UserWarning):
    """A model runs slower than its options ask for, or a file that they name cannot be used.

    Results are correct.
    """
