"""Calls the code that Dynamo has compiled directly, without Dynamo's frame evaluation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from nimble_fx.frontend.calls.direct_call import direct_call
from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.torch_internals.dynamo.entries import (
    DynamoEntry,
    is_evaluating_frames,
    is_ordinary_call,
    latest_entry,
)
from nimble_fx.torch_internals.dynamo.untraced import call_untraced

MAX_ENTRIES = 8
"""The maximum number of cache entries to call directly; Dynamo keeps as many by default."""


@dataclass(frozen=True)
class KnownCall:
    """A way to call a function that Dynamo compiled.

    Attributes:
        entry: the entry of Dynamo's cache.
        code: its code.
        run: takes the arguments and the keywords of a call for which the guards of the entry pass.
    """

    entry: DynamoEntry
    code: FunctionType
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls it; Dynamo, which may be compiling the caller, sees no frames of it."""
        if is_evaluating_frames():
            return call_untraced(self.run, args, kwargs)
        return self.run(args, kwargs)


class GuardedCalls:
    """Calls the entries of Dynamo's cache for one function.

    Dynamo evaluates a function's frame to check guards and to run the code of the entry whose
    guards pass. This class checks the same guards and runs the same code, or less of it
    (`direct_call`), without the overhead of frame evaluation; it leaves calls that no known entry
    fits to Dynamo.

    Attributes:
        reads_user_objects: whether a graph may read objects that Dynamo's code hands over globally.
    """

    def __init__(self, name: str, function: FunctionType, run: Callable[..., Any]) -> None:
        """No entry is known yet.

        Args:
            name: the model's.
            function: takes `*args` and `**kwargs`, and may have free variables.
            run: calls the function through Dynamo.
        """
        self._name, self._function, self._run = name, function, run
        self.reads_user_objects = False
        names, cells = function.__code__.co_freevars, function.__closure__ or ()
        self._free = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
        self._known: list[KnownCall] = []

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function."""
        if not is_ordinary_call():
            return self._run(*args, **kwargs)
        variables = self._variables(args, kwargs)
        for known in self._known:
            if known.entry.fits(variables):
                return known(args, kwargs)
        result = self._run(*args, **kwargs)
        self._learn(Arguments(args, kwargs))
        return result

    def _variables(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
        """The function's arguments and free variables by name."""
        return {"args": args, "kwargs": kwargs, **self._free}

    @property
    def latest(self) -> KnownCall | None:
        """The latest known way to call it."""
        return self._known[0] if self._known else None

    def clear(self) -> None:
        """Forgets all entries, and what they keep alive."""
        self._known = []

    def _learn(self, example: Arguments) -> None:
        """Adds the entry of the last call to the known ones, if it needs no frame evaluation.

        Args:
            example: the arguments of the call.
        """
        entry = latest_entry(self._function.__code__)
        self._known = known = [each for each in self._known if each.entry.is_alive]
        codes = [each.entry.code for each in known]
        if entry is None or not entry.is_whole or any(entry.code is code for code in codes):
            return
        self._known = [self._known_call(entry, example), *known][:MAX_ENTRIES]

    def _known_call(self, entry: DynamoEntry, example: Arguments) -> KnownCall:
        code = entry.as_function(self._function, self.reads_user_objects)
        does_more = bool(entry.effects) or self.reads_user_objects
        # once known calls are dropped for others, it does not pay to emit one
        pays = len(self._known) < MAX_ENTRIES
        # another thread, in another state of PyTorch, may have made the latest entry
        is_of_example = entry.fits(self._variables(example.args, example.kwargs))
        if pays and is_of_example and not does_more:
            direct = direct_call(self._name, code, entry.graph, example)
            if direct is not None:
                return KnownCall(entry, code, direct)
        return KnownCall(entry, code, lambda args, kwargs: code(*args, **kwargs))
