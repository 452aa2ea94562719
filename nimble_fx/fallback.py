"""Fallbacks: programs that run slower than the options ask for; warns, lists and counts them."""

import logging
import sys
import warnings
from dataclasses import dataclass
from typing import Literal

from nimble_fx.errors import FallbackError, NimbleWarning, ScheduleError, UnsupportedError
from nimble_fx.internal_files import is_internal
from nimble_fx.ir.task_graph import Source
from nimble_fx.torch_internals.dynamo.counters import count_event
from nimble_fx.torch_internals.dynamo.trace_log import trace_artifact
from nimble_fx.weak_list import WeakList

_log = logging.getLogger(__name__)

OnFallback = Literal["warn", "error", "silent"]

AS_TRACED = "as traced, without a schedule"
"""How a graph runs that PyTorch runs operator by operator (`Fallback.runs`)."""


@dataclass(frozen=True)
class Fallback:
    """A program that runs slower than the options ask for, in some or all calls.

    Attributes:
        program: the program's name.
        runs: how it runs instead, such as "on one stream" or "unfrozen".
        reason: why.
        node: the name of the fx node that causes it, if one does.
        source: the user's line that the node is from, if known.
    """

    program: str
    runs: str
    reason: str
    node: str | None = None
    source: Source | None = None

    @classmethod
    def caused_by(
        cls, error: UnsupportedError | ScheduleError, program: str, runs: str
    ) -> "Fallback":
        """The fallback that an error causes. An illegal schedule of our own is a bug."""
        if isinstance(error, UnsupportedError):
            return cls(program, runs, str(error), error.node, error.source)
        bug = "its schedule is not legal. This is a bug in nimble_fx, please report it"
        return cls(program, runs, f"{bug}: {error}")

    def __str__(self) -> str:
        return f"{self.program} runs {self.runs}: {self.reason}"


class Reporter:
    """Lists and counts the fallbacks of one compiled graph, and warns of the first.

    `fallbacks()` lists them while the reporter is alive.
    """

    def __init__(self, on_fallback: OnFallback = "warn") -> None:
        self._on_fallback = on_fallback
        self._reported: set[Fallback] = set()

    def report(self, fallback: Fallback) -> None:
        """Lists and counts a fallback that is new; warns if it is the first.

        Raises:
            FallbackError: `on_fallback` is "error"; raised for known fallbacks too.
        """
        is_first = not self._reported
        if fallback not in self._reported:
            self._reported.add(fallback)
            _fallbacks.add(fallback)
            count_event("fallbacks")
            _log.info("%s", fallback)
            trace_artifact("nimble_fallback", lambda: str(fallback))
        if self._on_fallback == "error":
            what = f"{fallback.program} would run {fallback.runs}: {fallback.reason}"
            message = f'{what} (an error because of on_fallback="error")'
            raise FallbackError(message, fallback.node, fallback.source)
        if is_first:
            self.warn(str(fallback))

    def warn(self, message: str) -> None:
        """Issues a NimbleWarning at the user's line, unless `on_fallback` is "silent"."""
        if self._on_fallback != "silent":
            warnings.warn(message, NimbleWarning, stacklevel=_level_of_user())


def _level_of_user() -> int:
    """The `stacklevel` of a warning of the caller for the first frame that is the user's, or 1."""
    level, frame = 1, sys._getframe(1).f_back
    while frame is not None:
        level += 1
        if not is_internal(frame.f_code.co_filename):
            return level
        frame = frame.f_back
    return 1


_fallbacks: WeakList[Fallback] = WeakList()


def fallbacks() -> tuple[Fallback, ...]:
    """The fallbacks of programs that can still run, oldest first.

    `torch.compiler.reset()` empties the list.
    """
    return _fallbacks.all()


def clear_fallbacks() -> None:
    """Empties the list that `fallbacks` returns."""
    _fallbacks.clear()
