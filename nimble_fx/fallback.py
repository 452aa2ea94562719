"""What runs in a slower way than it was asked to, and why: told once, listed, counted."""

import logging
import warnings
from dataclasses import dataclass
from typing import Literal

from nimble_fx.errors import FallbackError, NimbleWarning
from nimble_fx.ir.task_graph import Source
from nimble_fx.registry import Living
from nimble_fx.torch_internals.counters import count_event
from nimble_fx.torch_internals.trace_log import trace_artifact

_log = logging.getLogger(__name__)

OnFallback = Literal["warn", "error", "silent"]


@dataclass(frozen=True)
class Fallback:
    """A program, or some calls of it, that runs in a slower way than it was asked to.

    Attributes:
        program: what the user would call it.
        runs: how it runs instead: "as traced", "on one stream", "unfrozen".
        reason: why.
        node: the operator call that is the reason, by fx's name, if it is one.
        source: the user's line that made it, if it is known.
    """

    program: str
    runs: str
    reason: str
    node: str | None = None
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.program} runs {self.runs}: {self.reason}"


class Reporter:
    """Lists and counts the fallbacks of one compiled graph, and tells the user of the first.

    They are listed for as long as it lives.
    """

    def __init__(self, on_fallback: OnFallback = "warn") -> None:
        self._on_fallback = on_fallback
        self._reported: set[Fallback] = set()

    def report(self, fallback: Fallback) -> None:
        """Notes a fallback when it is taken for the first time.

        Raises:
            FallbackError: the user asked for an error. It is raised each time.
        """
        is_first = not self._reported
        if fallback not in self._reported:
            self._reported.add(fallback)
            _fallbacks.add(fallback)
            count_event("fallbacks")
            _log.info("%s", fallback)
            trace_artifact("nimble_fallback", lambda: str(fallback))
        if self._on_fallback == "error":
            refused = f"{fallback.program} would run {fallback.runs}: {fallback.reason}"
            says = f'{refused} (an error because of on_fallback="error")'
            raise FallbackError(says, fallback.node, fallback.source)
        if is_first:
            self.warn(str(fallback))

    def warn(self, message: str) -> None:
        """Warns, unless the user wants silence."""
        if self._on_fallback != "silent":
            warnings.warn(message, NimbleWarning, stacklevel=2)


_fallbacks: Living[Fallback] = Living()


def fallbacks() -> tuple[Fallback, ...]:
    """Of what can still run, oldest first; `torch.compiler.reset()` clears the list."""
    return _fallbacks.all()


def clear() -> None:
    """Empties the list."""
    _fallbacks.clear()
