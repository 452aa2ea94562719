"""Programs of Python functions, and a simulated clock that they advance."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nimble_fx.cost import time_in_program, timing_interpreter
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph
from tests.support.cost_graphs import tensor_type


class Clock:
    """A clock that only `taking` advances."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (time_in_program, timing_interpreter):
            patch.setattr(module, "perf_counter", lambda: self.now)

    def taking(self, seconds: float) -> Callable[..., None]:
        """A function that advances the clock by `seconds`."""

        def called(*_: object) -> None:
            self.now += seconds

        return called


def step(name: str, called: Callable[..., Any], *uses: str, launches: bool = True) -> Task:
    """A task that calls a function with some values."""
    reads = ("x",) if launches else ()
    return Task(name, called, tuple(map(Ref, uses)), reads=reads, holds=(name,))


def program(tasks: Sequence[Task], *outputs: str) -> TaskGraph:
    """A graph of these tasks with an input `x`."""
    given = Input("x", tensor_type(1), ("x",))
    return TaskGraph("g", (given,), (), tuple(tasks), tuple(map(Ref, outputs)))
