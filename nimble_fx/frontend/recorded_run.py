"""What a program was called with, and what it returned, in one call of the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

Boxed = Callable[[list[Any]], Sequence[Any]]
"""AOTAutograd's boxed calling convention: a call takes a list of inputs and empties it."""


@dataclass(frozen=True)
class RecordedRun:
    """One run of a program.

    Attributes:
        run: the program.
        inputs: its inputs.
        outputs: its outputs.
    """

    run: Boxed
    inputs: Sequence[Any]
    outputs: Sequence[Any]


class Recorder:
    """Records the runs of a model's programs while a call of the model is recorded."""

    def __init__(self) -> None:
        self.n_programs = 0
        self._lock = Lock()
        self._thread: int | None = None
        self._runs: list[RecordedRun] = []

    def watch(self, run: Boxed) -> Boxed:
        """The program, whose runs are recorded in a recorded call."""
        self.n_programs += 1

        def call(args: list[Any]) -> Sequence[Any]:
            if self._thread != get_ident():
                return run(args)
            inputs = list(args)
            outputs = run(args)
            self._runs.append(RecordedRun(run, inputs, list(outputs)))
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return call

    def recorded(self, call: Callable[[], Any]) -> tuple[Any, list[RecordedRun]]:
        """What a call returns, and its runs; none of them if another thread's call is recorded."""
        if not self._lock.acquire(blocking=False):
            return call(), []
        try:
            self._thread = get_ident()
            result = call()
            return result, self._runs
        finally:
            self._thread, self._runs = None, []
            self._lock.release()
