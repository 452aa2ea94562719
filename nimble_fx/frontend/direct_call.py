"""Calls of a compiled model that go straight to its program once Dynamo's guards have passed.

Between a call and the program PyTorch evaluates a frame, runs Dynamo's code, which fetches the
program's inputs, and in inference AOTAutograd's wrappers. Where a recorded call shows that these
only pass on what they get, later calls that the same guards accept do without them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import CodeType
from typing import Any

from torch import Tensor, nn

from nimble_fx.frontend.module_slots import ModuleSlots, slots_of
from nimble_fx.frontend.recorded_run import Boxed, RecordedRun, Recorder
from nimble_fx.ir.arguments import items_at
from nimble_fx.torch_internals.dynamo_entries import (
    DynamoEntry,
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


class NotDirectError(Exception):
    """A call cannot be made directly; the message says why."""


class DirectCalls:
    """Calls a compiled model directly where a recorded call has shown how, else by Dynamo.

    Attributes:
        why_not: why the last call that was recorded cannot be made directly; "" if it can.
    """

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
        self.why_not = ""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the model; for inference the caller has switched gradients off."""
        if not is_ordinary_call():
            return self._run(*args, **kwargs)
        variables = {"args": args, "kwargs": kwargs, "model": self._model}
        for direct in self._direct:
            if direct.fits(variables):
                return direct(args, kwargs)
        if self._n_attempts >= ATTEMPTS_PER_PROGRAM * (self._recorder.n_programs or 1):
            return self._run(*args, **kwargs)
        self._n_attempts += 1
        result, runs = self._recorder.recorded(lambda: self._run(*args, **kwargs))
        self._learn(runs, variables, result)
        return result

    @property
    def latest(self) -> "DirectCall | None":
        """The newest of the direct calls."""
        return self._direct[0] if self._direct else None

    def _learn(self, runs: Sequence[RecordedRun], variables: Variables, result: object) -> None:
        """Calls such as this one are direct from now on, if they can be."""
        entry = latest_entry(self._code)
        if len(runs) != 1 or entry is None or not entry.fits(variables):
            self.why_not = "it is not one graph of PyTorch's, or it changes what it depends on"
            return
        try:
            direct = direct_call(entry, runs[0], variables, result)
        except NotDirectError as error:
            self.why_not = str(error)
            return
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
        return self.result(self.run(self.program_inputs(args, kwargs)))

    def program_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The program's inputs in a call."""
        values = (*self.arguments(args, kwargs), *self.slots.tensors())
        return list(self.inputs(values))


def direct_call(
    entry: DynamoEntry, recorded: RecordedRun, variables: Variables, result: object
) -> DirectCall:
    """The direct call that does what a recorded call did.

    Args:
        entry: the one of Dynamo's cache that the call has used.
        recorded: the run of the call's program.
        variables: those of the call.
        result: what the call returned.

    Raises:
        NotDirectError: the call did more than to pass on: unless each input of the program is one
            argument or one parameter or buffer of the model, and each output a part of the result.
    """
    if not only_calls_its_graph(entry.code):
        raise NotDirectError("it reads or changes objects other than parameters and buffers")
    paths = _tensor_paths(variables["args"], variables["kwargs"])
    rest = [value for value in recorded.inputs if id(value) not in paths]
    slots = _slots(variables["model"], rest)
    places = {key: i for i, key in enumerate((*paths, *map(id, rest)))}
    inputs = items_at([places[id(value)] for value in recorded.inputs])
    build = _builder(result, recorded.outputs)
    return DirectCall(entry, recorded.run, _picks(list(paths.values())), slots, inputs, build)


def _slots(model: object, tensors: Sequence[Any]) -> ModuleSlots:
    """The slots of these tensors in the model."""
    if not tensors:
        return ModuleSlots((), (), ())
    if isinstance(model, nn.Module) and all(isinstance(x, Tensor) for x in tensors):
        slots = slots_of(model, tensors)
        if slots is not None:
            return slots
    raise NotDirectError(
        "it reads a number that may change, or a tensor that is no argument, nor a parameter or "
        "buffer at one place of the model"
    )


Path = tuple[Any, ...]
"""The indices and keys that lead to a tensor in (args, kwargs)."""


def _tensor_paths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Path]:
    """The path of each tensor by its id."""
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    paths: dict[int, Path] = {}
    for keys, leaf in leaves:
        if isinstance(leaf, Tensor):
            path = tuple(getattr(key, "idx", getattr(key, "key", None)) for key in keys)
            if id(leaf) in paths or None in path:
                raise NotDirectError(
                    "an argument is passed twice, or in a container other than lists and dicts"
                )
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


def _builder(result: object, outputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """A function from a program's outputs to the result."""
    leaves, spec = pytree.tree_flatten(result)
    places = {id(value): i for i, value in enumerate(outputs) if isinstance(value, Tensor)}
    indices = [places[id(leaf)] for leaf in leaves if id(leaf) in places]
    if len(indices) != len(leaves) or {*indices} != {*range(len(outputs))}:
        raise NotDirectError("its result is not made of new tensors alone, each of them once")
    pick = items_at(indices)
    if isinstance(result, Tensor):
        return lambda values: pick(values)[0]
    return lambda values: pytree.tree_unflatten(list(pick(values)), spec)
