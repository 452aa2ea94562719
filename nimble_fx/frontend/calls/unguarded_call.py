"""Calls a compiled model after a check of the inputs, but not of the model, for changes."""

from collections.abc import Callable
from typing import Any

from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.frontend.calls.compiled_weights import CompiledWeights
from nimble_fx.frontend.calls.graph_call import graph_call
from nimble_fx.frontend.calls.guarded_call import GuardedCalls
from nimble_fx.frontend.calls.input_check import InputCheck
from nimble_fx.frontend.models.model_function import Arguments, name_of, named_parameters
from nimble_fx.frontend.models.reachable_state import reachable_state
from nimble_fx.runtime.folding.folded_run import FoldedRun
from nimble_fx.torch_internals.dynamo.entries import PytorchState
from nimble_fx.torch_internals.leaves import tensors_in


class UnguardedCall:
    """Calls the code that Dynamo compiled for an example; refuses inputs unlike the example's.

    Attributes:
        has_weights: whether the model still has its weights; False if they were released.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guarded: GuardedCalls,
        example: Arguments,
    ) -> None:
        """To be made in the PyTorch state (grad mode and such) that calls will have.

        Args:
            model: the model.
            guarded: has called the model with the example; makes the calls in any other state.
            example: the example's inputs.

        Raises:
            UnsupportedError: calls depend on more than their inputs, or have side effects.
        """
        if guarded.latest is None:
            raise UnsupportedError("it is not one graph of PyTorch's, or changes in each call")
        self._known, entry = guarded.latest, guarded.latest.entry
        if entry.has_dynamic_sizes:
            raise UnsupportedError(
                "sizes or strides of its inputs are dynamic, and only guards check which ones its "
                "program is for"
            )
        if entry.makes_objects:
            raise UnsupportedError(
                "it makes an object of a class, such as a dataclass for its result; tensors in "
                "tuples, named tuples, lists and dicts need no guards"
            )
        if entry.effects:
            raise UnsupportedError(
                "it reads or changes objects other than its parameters and buffers, or assigns to "
                "an attribute (for a buffer, `self.n.add_(1)` needs no guards, and `self.n += 1` "
                f"does); PyTorch's code for it has the names {', '.join(entry.effects)}"
            )
        self._name, self._guarded, self._state = name_of(model), guarded, PytorchState()
        self.has_weights = True
        self._weights = CompiledWeights(model)
        self._inputs = InputCheck(
            self._name, example, lambda: reachable_state(model).tensors, named_parameters(model)
        )

    def release_weights(self, example: Arguments) -> None:
        """Frees the weights that the program reads only in folded form.

        Args:
            example: the example's inputs.

        Raises:
            UnsupportedError: there are none.
        """
        call = graph_call(self._known.code, self._known.entry.graph, example)
        program, returned = call.program, tensors_in(call.returned)
        if not (isinstance(program, FoldedRun) and program.release_weights(call.inputs, returned)):
            raise UnsupportedError(
                "its program has no folded weights (is the model in eval mode, and fold_weights "
                "on? small matrices stay as they are), or they are read in other ways too, or "
                "verify='values' compares it"
            )
        self.has_weights = False

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the model; the caller has switched gradients off.

        Raises:
            InputError: the inputs are not like those of the example, or the call fails and a
                parameter or buffer is gone or of another type, or two are not tied any more.
            UnsupportedError: the call would need the model's weights, which were released.
        """
        if not self._state.is_same():
            return self._call_guarded(args, kwargs)
        self._inputs.check(args, kwargs)
        untied = self._weights.untied() if self._weights.are_tied else None
        if untied is not None:
            raise InputError(self._since(f"{untied} were one tensor. They are now two"))
        try:
            return self._known(args, kwargs)
        except (InputError, UnsupportedError):
            raise
        except Exception as error:  # of an operator, or an OperatorError of a kernel
            difference = self._weights.difference() if self.has_weights else None
            if difference is None:
                raise
            raise InputError(self._since(difference)) from error

    def _since(self, what: str) -> str:
        return (
            f"{self._name} was compiled with guards=False, when its {what}: compile it again, or "
            "with guards=True, which does so whenever the model has changed"
        )

    def _call_guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.has_weights:
            return self._guarded(args, kwargs)
        raise UnsupportedError(
            f"{self._name} was compiled with release_weights=True, and this call would have to "
            "compile it again, because PyTorch's state differs from that at compile time: "
            f"{self._state.difference}. Compile in the state in which you call"
        )
