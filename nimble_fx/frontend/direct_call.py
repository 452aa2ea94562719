"""Calls of a compiled model that do not go through Dynamo, nor through the model's Python code.

Dynamo compiles a call to a function that fetches parameters, calls one graph, and puts its outputs
together. Where it did no more than that, `DirectCall` does the same: which input of the graph is
which argument or parameter, and which output is where in the result, is found by identity in the
call that was compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nimble_fx.frontend.call_arguments import CONSTANTS, CallArguments
from nimble_fx.frontend.expected_inputs import PLAIN, ExpectedTensors
from nimble_fx.frontend.model_state import ModelState
from nimble_fx.runtime.pool_group import Boxed
from nimble_fx.torch_internals.names import (
    GlobalStateGuard,
    n_dispatch_modes,
    n_function_modes,
    pytree,
)


class NotDirectError(Exception):
    """A call that can go through Dynamo only; the message says why."""


@dataclass(frozen=True)
class Observed:
    """One call of a graph that Dynamo compiled.

    Attributes:
        run: the graph's callable.
        boxed: the program itself, which takes the inputs in a list and must be called without
            gradients; None if it needs what `run` does besides.
        why_not_alone: why the graph is not all that Dynamo's code of the call does; None if it is.
        writes_inputs: whether it may write to an input that is no parameter or buffer.
        inputs: of the call.
        outputs: of the call.
    """

    run: Callable[..., Sequence[Any]]
    boxed: Boxed | None
    why_not_alone: str | None
    writes_inputs: bool
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


class DirectCall:
    """Runs a model's one graph on the arguments of a call and the model's tensors as they are now.

    In each call it compares what Dynamo's guards compare, but for Python values outside of the
    call: other attributes of modules, globals, closures and classes are those of the compile.
    """

    def __init__(
        self,
        observed: Observed,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        modules: Sequence[tuple[str, nn.Module]],
        training: bool,
    ) -> None:
        """Finds out how arguments, parameters and outputs go together.

        Args:
            observed: the call of the graph.
            args: positional arguments of the model in that call.
            kwargs: its keyword arguments.
            result: what the model returned.
            modules: all modules that the model may have run, by name.
            training: whether the graph has a backward.

        Raises:
            NotDirectError: the call did more than to run the graph, or more than can be checked.
        """
        self._run, self._boxed = observed.run, observed.boxed
        self._is_inference_mode = torch.is_inference_mode_enabled()
        self._arguments, self._model = CallArguments(args, kwargs), ModelState(modules, training)
        why = observed.why_not_alone or self._arguments.why_not_checked()
        why = why or self._model.why_not_checked() or _why_in_a_mode()
        if why is not None:
            raise NotDirectError(why)
        leaves = self._arguments.tensors(args, kwargs) or []
        tensors = [*leaves, *self._model.tensors]
        places = {id(tensor): i for i, tensor in enumerate(tensors)}
        if not tensors or len(places) < len(tensors):
            raise NotDirectError("two of its tensors are the same, or it has none")
        strange = {type(tensor).__name__ for tensor in tensors if type(tensor) not in PLAIN}
        if strange:
            raise NotDirectError(f"it takes tensors of the types {sorted(strange)}")
        if not all(id(value) in places for value in observed.inputs):
            raise NotDirectError("its graph takes values that are no arguments and no parameters")
        self._places = [places[id(value)] for value in observed.inputs]
        self._fill(tensors)
        self._result = result_builder(result, observed.outputs, leaves)
        names = [*self._arguments.names, *self._model.names]
        n_separate = len(self._arguments.names) if observed.writes_inputs else 0
        self._expected = ExpectedTensors(names, tensors, training, n_separate)
        self._settings = GlobalStateGuard()

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns the result of a call; NotImplemented if it is not surely like the compiled one.

        Gradients must be enabled as in the call that was compiled.
        """
        leaves = self._arguments.tensors(args, kwargs)
        if (
            leaves is None
            or n_function_modes()
            or n_dispatch_modes()
            or not self._settings.check()
            or not self._model.is_unchanged()
            or not self._expected.fit(leaves, self._model.tensors)
        ):
            return NotImplemented
        inputs = self._inputs.copy()
        for i, place in self._from_call:
            inputs[i] = leaves[place]
        outputs = self._run(*inputs) if self._boxed is None else self._boxed(inputs)
        return self._result(outputs, leaves)

    def is_for_now(self) -> bool:
        """Whether PyTorch's modes and settings are those of the compiled call."""
        return (
            _why_in_a_mode() is None
            and torch.is_inference_mode_enabled() == self._is_inference_mode
            and self._settings.check()
        )

    def difference(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """In what a call differs from the compiled one; None if the next one will surely fit."""
        found = self._arguments.difference(args, kwargs) or self._model.refresh()
        if found is not None:
            return found
        leaves = self._arguments.tensors(args, kwargs) or []
        tensors = [*leaves, *self._model.tensors]
        found = self._expected.difference(tensors)
        if found is None:
            self._fill(tensors)
        return found

    def _fill(self, tensors: Sequence[Any]) -> None:
        """Prepares the graph's inputs, of which a call replaces those that are its arguments."""
        n_leaves = len(self._arguments.names)
        self._from_call = [(i, k) for i, k in enumerate(self._places) if k < n_leaves]
        self._inputs = [tensors[k] for k in self._places]
        for i, _ in self._from_call:
            self._inputs[i] = None


def _why_in_a_mode() -> str | None:
    modes = n_function_modes() or n_dispatch_modes()
    return "it is called under a mode, such as torch.device" if modes else None


def result_builder(
    result: Any, outputs: Sequence[Any], inputs: Sequence[Any]
) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """A function that makes a model's result of the outputs and inputs of its graph.

    Args:
        result: the result of one call.
        outputs: the graph's outputs in it.
        inputs: the tensors among the arguments.

    Raises:
        NotDirectError: the result has other objects in it.
    """
    sources = {id(value): (True, i) for i, value in enumerate(inputs)}
    sources |= {id(value): (False, i) for i, value in enumerate(outputs)}
    if isinstance(result, Tensor) and id(result) in sources:
        is_input, position = sources[id(result)]
        if not is_input:
            return lambda outputs, _: outputs[position]
    if type(result) is tuple and [id(v) for v in result] == [id(v) for v in outputs]:
        return lambda outputs, _: tuple(outputs)
    leaves, spec = pytree.tree_flatten(result)
    for leaf in leaves:
        if id(leaf) not in sources and type(leaf) not in CONSTANTS:
            raise NotDirectError(f"its result has a {type(leaf).__name__} in it")
    parts = [sources.get(id(leaf), (None, leaf)) for leaf in leaves]

    def build(outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
        values = [
            part if is_input is None else (inputs if is_input else outputs)[part]
            for is_input, part in parts
        ]
        return pytree.tree_unflatten(values, spec)

    return build
