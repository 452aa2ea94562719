"""Calls the code that Dynamo has compiled directly, without Dynamo's frame evaluation."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from nimble_fx.torch_internals.dynamo.entries import DynamoEntry, is_ordinary_call, latest_entry

MAX_ENTRIES = 8
"""The maximum number of cache entries to call directly; Dynamo keeps as many by default."""


class GuardedCalls:
    """Calls the entries of Dynamo's cache for one function.

    Dynamo evaluates a function's frame to check guards and to run the code of the entry whose
    guards pass. This class checks the same guards and runs the same code, without the overhead of
    frame evaluation; it leaves calls that no known entry fits to Dynamo.

    Attributes:
        reads_user_objects: whether a graph may read objects that Dynamo's code hands over globally.
    """

    def __init__(self, function: FunctionType, run: Callable[..., Any]) -> None:
        """No entry is known yet.

        Args:
            function: takes `*args` and `**kwargs`, and may have free variables.
            run: calls the function through Dynamo.
        """
        self._function, self._run = function, run
        self.reads_user_objects = False
        names, cells = function.__code__.co_freevars, function.__closure__ or ()
        self._free = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
        self._known: list[tuple[DynamoEntry, FunctionType]] = []

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function."""
        if not is_ordinary_call():
            return self._run(*args, **kwargs)
        variables = {"args": args, "kwargs": kwargs, **self._free}
        for entry, code in self._known:
            if entry.fits(variables):
                return code(*args, **kwargs)
        result = self._run(*args, **kwargs)
        self._learn()
        return result

    @property
    def latest(self) -> tuple[DynamoEntry, FunctionType] | None:
        """The latest known entry, and its code as a function."""
        return self._known[0] if self._known else None

    def clear(self) -> None:
        """Forgets all entries, and what they keep alive."""
        self._known = []

    def _learn(self) -> None:
        """Adds the entry of the last call to the known ones, if it needs no frame evaluation."""
        entry = latest_entry(self._function.__code__)
        self._known = known = [pair for pair in self._known if pair[0].is_alive]
        if entry is None or not entry.is_whole or any(entry.code is old.code for old, _ in known):
            return
        code = entry.as_function(self._function, self.reads_user_objects)
        self._known = [(entry, code), *known][:MAX_ENTRIES]
