"""Calls of a compiled model that go straight to its program once Dynamo's guards have passed.

Between a call and the program PyTorch evaluates a frame, runs Dynamo's code, which fetches the
program's inputs, and AOTAutograd's wrappers. Where a recorded call shows that these only pass on
what they get, later calls that the same guards accept do without them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import CodeType
from typing import Any

from torch import Tensor

from nimble_fx.frontend.module_slots import ModuleSlots, slots_of
from nimble_fx.frontend.recorded_run import Boxed, RecordedRun, Recorder
from nimble_fx.ir.arguments import items_at
from nimble_fx.torch_internals.dynamo_entries import (
    DynamoEntry,
    global_state,
    is_ordinary_call,
    latest_entry,
    only_calls_its_graph,
)
from nimble_fx.torch_internals.names import pytree

MAX_DIRECT_CALLS = 8
"""The most compiled versions of a model that are called directly: as many as Dynamo keeps."""

ATTEMPTS_PER_PROGRAM = 2
"""How many calls are recorded for each program that is compiled."""

Variables = Mapping[str, Any]
"""The variables of a call of `model_function.unique_function`: args, kwargs, model."""


class DirectCalls:
    """Calls a compiled model directly where a recorded call has shown how, else by Dynamo."""

    def __init__(
        self,
        model: Callable[..., Any],
        code: CodeType,
        run: Callable[..., Any],
        recorder: Recorder,
    ) -> None:
        """Nothing is recorded yet.

        Args:
            model: the model.
            code: of the function that calls the model, which Dynamo compiles.
            run: calls that function by Dynamo.
            recorder: watches the model's programs.
        """
        self._model, self._code, self._run, self._recorder = model, code, run, recorder
        self._direct: list[DirectCall] = []
        self._n_attempts = 0

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the model; the caller has switched gradients off."""
        if not is_ordinary_call():
            return self._run(*args, **kwargs)
        variables = {"args": args, "kwargs": kwargs, "model": self._model}
        for direct in self._direct:
            if direct.fits(variables):
                return direct(args, kwargs)
        if self._n_attempts >= ATTEMPTS_PER_PROGRAM * (self._recorder.n_programs or 1):
            return self._run(*args, **kwargs)
        self._n_attempts += 1
        state = global_state()
        result, runs = self._recorder.recorded(lambda: self._run(*args, **kwargs))
        if len(runs) == 1 and state.check():
            self._learn(runs[0], variables, result)
        return result

    def _learn(self, run: RecordedRun, variables: Variables, result: object) -> None:
        """Calls such as this one are direct from now on, if they can be."""
        entry = latest_entry(self._code)
        if entry is None or not (only_calls_its_graph(entry.code) and entry.fits(variables)):
            return
        direct = direct_call(entry, run, variables, result)
        if direct is not None:
            alive = [each for each in self._direct if each.entry.is_alive]
            self._direct = [direct, *alive][:MAX_DIRECT_CALLS]


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A direct call of one compiled version of a model.

    Attributes:
        entry: of Dynamo's cache.
        run: the program.
        arguments: picks the tensors among a call's arguments.
        slots: those of the parameters and buffers.
        inputs: arranges arguments, parameters and buffers as the program's inputs.
        result: makes what the model returns of the program's outputs.
    """

    entry: DynamoEntry
    run: Boxed
    arguments: Callable[[tuple[Any, ...], Mapping[str, Any]], Sequence[Any]]
    slots: ModuleSlots
    inputs: Callable[[Sequence[Any]], Sequence[Any]]
    result: Callable[[Sequence[Any]], Any]

    def fits(self, variables: Variables) -> bool:
        """Whether a call is one of this version's."""
        return self.entry.fits(variables) and self.slots.are_same_modules

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls the program."""
        values = (*self.arguments(args, kwargs), *self.slots.tensors())
        return self.result(self.run(list(self.inputs(values))))


def direct_call(
    entry: DynamoEntry, recorded: RecordedRun, variables: Variables, result: object
) -> DirectCall | None:
    """The direct call that does what a recorded call did; None if that is not only passing on.

    It is if each input of the program is one argument or one parameter or buffer of the model, each
    output a part of the result, and no input's layout was changed.

    Args:
        entry: the one of Dynamo's cache that the call has used.
        recorded: the run of the call's program.
        variables: those of the call.
        result: what the call returned.
    """
    paths = _tensor_paths(variables["args"], variables["kwargs"])
    if paths is None or not recorded.keeps_layouts:
        return None
    rest = [value for value in recorded.inputs if id(value) not in paths]
    if not all(isinstance(value, Tensor) for value in rest):
        return None
    slots = slots_of(variables["model"], rest) if rest else ModuleSlots((), (), ())
    build = _builder(result, recorded.outputs)
    if slots is None or build is None:
        return None
    places = {key: i for i, key in enumerate((*paths, *map(id, rest)))}
    inputs = items_at([places[id(value)] for value in recorded.inputs])
    arguments = _picks(list(paths.values()))
    return DirectCall(entry, recorded.run, arguments, slots, inputs, build)


Path = tuple[Any, ...]
"""The indices and keys that lead to a tensor in (args, kwargs)."""


def _tensor_paths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Path] | None:
    """The path of each tensor by its id; None if one is there twice, or not in plain containers."""
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    paths: dict[int, Path] = {}
    for keys, leaf in leaves:
        if isinstance(leaf, Tensor):
            path = tuple(getattr(key, "idx", getattr(key, "key", None)) for key in keys)
            if id(leaf) in paths or None in path:
                return None
            paths[id(leaf)] = path
    return paths


def _picks(
    paths: Sequence[Path],
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Sequence[Any]]:
    """A function that returns what is at the paths in (args, kwargs)."""
    if paths == [(0, i) for i in range(len(paths))]:
        return lambda args, kwargs: args[: len(paths)]

    def item(container: Any, key: Any) -> Any:
        return container[key]

    return lambda args, kwargs: [reduce(item, path, (args, kwargs)) for path in paths]


def _builder(result: object, outputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
    """A function from a program's outputs to the result; None if that is not made of them alone."""
    leaves, spec = pytree.tree_flatten(result)
    places = {id(value): i for i, value in enumerate(outputs) if isinstance(value, Tensor)}
    indices = [places[id(leaf)] for leaf in leaves if id(leaf) in places]
    if len(indices) != len(leaves) or {*indices} != {*range(len(outputs))}:
        return None
    pick = items_at(indices)
    if isinstance(result, Tensor):
        return lambda values: pick(values)[0]
    return lambda values: pytree.tree_unflatten(list(pick(values)), spec)
