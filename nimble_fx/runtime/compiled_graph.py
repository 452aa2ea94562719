"""Calls a compiled inference graph of Dynamo's: AOTAutograd's function, or its program directly."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import is_grad_enabled

from nimble_fx.runtime.fastest import winner_of
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.names import is_any_autocast_enabled

_Calls = list[tuple[Sequence[Any], Sequence[Any]]]
"""The arguments and results of calls, in order."""


class WatchedProgram:
    """A program, with what AOTAutograd passes to it, and what it returns, in watched calls.

    Attributes:
        program: the program.
        run: calls it.
    """

    def __init__(self, program: Boxed) -> None:
        here = self._here = _OfThread()

        @boxed
        def run(args: list[Any]) -> Sequence[Any]:  # AOTAutograd would copy an object's attributes
            if here.calls is None:
                return program(args)
            inputs, calls = list(args), here.calls
            outputs = program(args)
            calls.append((inputs, outputs))
            return outputs

        self.program, self.run = program, run

    def watch(self, function: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, _Calls]:
        """Calls a function; returns its result, and calls of the program by this thread in it."""
        before, self._here.calls = self._here.calls, []
        try:
            return function(*args), self._here.calls
        finally:
            self._here.calls = before


class CompiledGraph:
    """Calls a compiled inference graph of Dynamo's.

    AOTAutograd's function for it switches gradients and autocast off and calls the program. For
    some graphs it also passes other arguments on, or returns other results, such as new views of
    inputs. Which of this it does is fixed when it is compiled, so the first call shows it: if the
    program takes and returns the very same objects, later calls run it directly.

    Attributes:
        program: the program, once it is known that calling it is all that AOTAutograd does.
        n_outputs: the number of its outputs.
    """

    __slots__ = ("_is_known", "_run", "_watched", "n_outputs", "program")

    def __init__(self, run: Callable[..., Any], watched: WatchedProgram) -> None:
        """A graph that was not called yet.

        Args:
            run: AOTAutograd's function, of which nothing but arguments and results tells whether
                it does more than to call the program.
            watched: the program that it calls.
        """
        self._run, self._watched, self._is_known = run, watched, False
        self.program: Boxed | None = None
        self.n_outputs = 0

    def __call__(self, *args: Any) -> Any:
        """Calls the graph."""
        if self.program is not None and not (is_grad_enabled() or is_any_autocast_enabled()):
            return self.program(list(args))
        return self._run(*args) if self._is_known else self._first_call(args)

    def _first_call(self, args: Sequence[Any]) -> Any:
        returned, calls = self._watched.watch(self._run, args)
        if len(calls) == 1:
            inputs, outputs = calls[0]
            if are_same(inputs, args) and are_same(outputs, returned):
                self.n_outputs = len(outputs)
                self.program = winner_of(self._watched.program) or self._watched.program
        self._is_known = True
        return returned


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two lists have the same objects; numbers and strings need only be equal."""
    return len(some) == len(others) and all(map(_is_same, some, others))


def _is_same(one: object, other: object) -> bool:
    is_constant = type(one) is type(other) and isinstance(one, (bool, int, float, str))
    return one is other or (is_constant and one == other)


class _OfThread(threading.local):
    """The calls of a thread; None while it does not watch."""

    calls: _Calls | None = None
