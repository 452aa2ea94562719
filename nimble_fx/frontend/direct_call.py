"""Calls a model's one program directly, without the code of Dynamo and AOTAutograd around it."""

from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any

from torch import Tensor

from nimble_fx.frontend.compiled_weights import CompiledWeights, Place
from nimble_fx.frontend.recorded_run import RecordedCall
from nimble_fx.runtime.fastest import winner_of
from nimble_fx.runtime.items_at import items_at
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.dynamo.entries import is_evaluating_frames
from nimble_fx.torch_internals.names import is_any_autocast_enabled


class DirectCall:
    """A function of tensors that passes them and the model's weights to a program.

    Each call fetches the weights from their modules, because they may be replaced. If a module is,
    or a weight is gone, it runs Dynamo's code, which fetches them by name.
    """

    def __init__(
        self,
        run: Boxed,
        weights: Sequence[Place],
        modules: Sequence[tuple[dict[str, Any], str]],
        order: Sequence[int],
        pack: Callable[[Sequence[Any]], object],
        code: Callable[..., Any],
    ) -> None:
        """A function for one program; see `direct_call`.

        Args:
            run: the program.
            weights: where the weights are that it takes.
            modules: where the model has the modules by which it has these.
            order: for each of its inputs the position among arguments and weights.
            pack: makes what the model returns from its outputs.
            code: Dynamo's code for the model.
        """
        self._run, self._pack, self._code = winner_of(run) or run, pack, code
        self._weights = [(place.store, place.key) for place in weights]
        self._places_of_modules, self._in_order = modules, items_at(order)
        self._modules = [store[key] for store, key in modules]

    def __call__(self, *args: Tensor) -> object:
        """Calls the model with arguments like the example's."""
        if is_evaluating_frames():  # Dynamo would compile the frames of the program's run
            return self._code(*args)
        try:
            modules = [store[key] for store, key in self._places_of_modules]
            values = [*args, *[store[key] for store, key in self._weights]]
        except KeyError:
            return self._code(*args)
        if not all(map(is_, modules, self._modules)):
            return self._code(*args)
        return self._pack(self._run(list(self._in_order(values))))


def direct_call(
    recorded: RecordedCall, compiled: CompiledWeights, code: Callable[..., Any]
) -> DirectCall | None:
    """The function that does what Dynamo's code did in a call, if that was to run one program.

    The program took arguments and weights as they were, and the call returned some of its outputs
    as they were, alone or in a tuple or list. If the call did anything else, there is none.

    Args:
        recorded: the call.
        compiled: the parameters and buffers of the model.
        code: Dynamo's code, which has no effects besides those of the program.
    """
    args, runs = recorded.arguments.args, recorded.runs
    if recorded.arguments.kwargs or len(runs) != 1 or is_any_autocast_enabled():
        return None
    (run,) = runs
    by_weight = {id(place.weight): place for place in compiled.places}
    weights = [by_weight[id(value)] for value in run.inputs if id(value) in by_weight]
    sources = [*args, *[place.weight for place in weights]]
    order = _positions(run.inputs, sources)
    pack = _packing(run.outputs, recorded.returned)
    if run.changes_inputs or order is None or pack is None:
        return None
    return DirectCall(run.run, weights, compiled.modules_to(weights), order, pack, code)


def _positions(values: Sequence[Any], among: Sequence[Any]) -> list[int] | None:
    """The position of each tensor among other values; None if one is not there, or no tensor."""
    known = {id(value): k for k, value in enumerate(among) if isinstance(value, Tensor)}
    found = [known.get(id(value)) for value in values]
    return None if None in found else [k for k in found if k is not None]


def _packing(outputs: Sequence[Any], returned: object) -> Callable[[Sequence[Any]], object] | None:
    """The function that makes what a model returned from a program's outputs; None if unknown."""
    if isinstance(returned, Tensor):
        alone = _positions([returned], outputs)
        return itemgetter(*alone) if alone else None
    if type(returned) is not tuple and type(returned) is not list:
        return None
    places = _positions(returned, outputs)
    if places is None:
        return None
    make, pick = type(returned), items_at(places)
    return lambda outputs: make(pick(outputs))
