"""What a program was called with, and what it returned, in one call of the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

from torch import Tensor

Boxed = Callable[[list[Any]], Sequence[Any]]
"""AOTAutograd's boxed calling convention: a call takes a list of inputs and empties it."""


@dataclass(frozen=True)
class RecordedRun:
    """One run of a program.

    Attributes:
        run: the program.
        inputs: its inputs.
        layouts: those of the inputs before the run.
        outputs: its outputs.
    """

    run: Boxed
    inputs: Sequence[Any]
    layouts: Sequence[object]
    outputs: Sequence[Any]

    @property
    def keeps_layouts(self) -> bool:
        """Whether the inputs have the same shapes and strides, in the same memory, as before it."""
        return list(map(_layout, self.inputs)) == self.layouts


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
            inputs, layouts = list(args), list(map(_layout, args))
            outputs = run(args)
            self._runs.append(RecordedRun(run, inputs, layouts, list(outputs)))
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


def _layout(value: object) -> object:
    """The memory and shape of a tensor; another value itself."""
    if not isinstance(value, Tensor):
        return value
    return value.data_ptr(), value.shape, value.stride(), value.dtype
