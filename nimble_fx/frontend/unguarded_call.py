"""Calls a compiled model after a check of the inputs, but not of the model, for changes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isnan
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.frontend.compiled_weights import CompiledWeights
from nimble_fx.frontend.guarded_call import GuardedCalls
from nimble_fx.frontend.model_function import Arguments, name_of
from nimble_fx.frontend.preserve_state import tensors_of
from nimble_fx.ir.display import plural
from nimble_fx.torch_internals.dynamo.entries import PytorchState
from nimble_fx.torch_internals.names import lookup, pytree

_TensorGuards = lookup("torch._C._dynamo.guards.TensorGuards")

_COMPARED = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""The types of arguments that cannot change, so that they can be compared with the example's."""


class UnguardedCall:
    """Calls the code that Dynamo compiled for an example; refuses inputs unlike the example's.

    Attributes:
        has_weights: whether the model still has its weights; False if they were released.
    """

    def __init__(
        self, model: Callable[..., Any], guarded: GuardedCalls, example: Arguments
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
        entry, self._call = guarded.latest
        if entry.effects:
            raise UnsupportedError(
                "it reads or changes objects other than its parameters and buffers: "
                + ", ".join(entry.effects)
            )
        self.has_weights = True
        self._name, self._guarded, self._state = name_of(model), guarded, PytorchState()
        self._weights = CompiledWeights(model)
        self._check = InputCheck(self._name, example, partial(tensors_of, model))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the model; the caller has switched gradients off.

        Raises:
            InputError: the inputs are not like those of the example, or parameters or buffers are
                gone, or were tied at the compile and are not any more.
            UnsupportedError: the call would need the model's weights, which were released.
        """
        if not self._state.is_same():
            return self._call_guarded(args, kwargs)
        self._check(args, kwargs)
        untied = self._weights.untied()
        if untied is not None:
            raise InputError(self._since(f"{untied} were one tensor, and are two"))
        try:
            return self._call(*args, **kwargs)
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Adds to an error how the model has changed since it was compiled, if it has.

        Raises:
            InputError: instead of an error in the code that fetches parameters and buffers.
        """
        difference = self._weights.difference() if self.has_weights else None
        if difference is None:
            return
        (*_, (frame, _)) = walk_tb(error.__traceback__)
        if frame.f_code is self._call.__code__:
            raise InputError(self._since(difference)) from error
        error.add_note(self._since(difference))

    def _since(self, what: str) -> str:
        return (
            f"{self._name} was compiled with guards=False, and since then its {what}: compile it "
            "again, or with guards=True, which does so whenever the model has changed"
        )

    def _call_guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.has_weights:
            return self._guarded(args, kwargs)
        raise UnsupportedError(
            f"{self._name} was compiled with release_weights=True, and this call would have to "
            "compile it again, because PyTorch's state differs from that at compile time: "
            f"{self._state.difference}. Compile in the state in which you call"
        )


class InputCheck:
    """Compares a call's inputs with those of an example, by PyTorch's guards of tensors.

    Tensors must have the type, shape, strides, dtype, device and `requires_grad` of the example's,
    and be distinct from each other and from the tensors that the model had when it was compiled;
    all other arguments must be equal. Cost: 0.3 microseconds if all are positional tensors.
    """

    def __init__(self, name: str, example: Arguments, own: Callable[[], Sequence[Tensor]]) -> None:
        """Looks at the example.

        Args:
            name: the model's, for errors.
            example: the example's inputs.
            own: returns the model's tensors. No reference to them is kept, not even a weak one,
                because `torch.utils.swap_tensors` refuses tensors with weak references.

        Raises:
            UnsupportedError: an argument is neither a tensor nor a constant such as a number or a
                string, in tuples, lists and dicts; or a tensor is passed twice.
        """
        self._name, self._keywords = name, list(example.kwargs)
        leaves, self._spec = pytree.tree_flatten((example.args, dict(example.kwargs)))
        self._names, self._signature = _names(example), _signature(example.args, example.kwargs)
        self._others = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        for i, leaf in self._others.items():
            if type(leaf) not in _COMPARED:
                raise UnsupportedError(f"{self._names[i]} is a {type(leaf).__name__}")
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len({*map(id, tensors)}) != len(tensors):
            raise UnsupportedError("an argument is passed twice")
        self._own, self._own_ids = own, frozenset(map(id, own()))
        if not self._own_ids.isdisjoint(map(id, tensors)):
            raise UnsupportedError("an argument is a parameter or buffer of it")
        self._tensors = _TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
        )
        is_flat = not example.kwargs and all(isinstance(x, Tensor) for x in example.args)
        self._n_tensors = len(tensors) if is_flat else -1

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Checks the inputs of a call.

        Raises:
            InputError: they differ from the example's; the message says how.
        """
        if (
            len(args) == self._n_tensors
            and not kwargs
            and self._tensors.check(*args)
            and self._own_ids.isdisjoint(map(id, args))
        ):
            return
        if kwargs.keys() == {*self._keywords}:  # their order does not matter
            kwargs = {name: kwargs[name] for name in self._keywords}
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        signature = _signature(args, kwargs)
        if signature != self._signature:
            problem: str | None = f"it is called with {signature}, not with {self._signature}"
        else:
            problem = self._problem(leaves, spec)
        if problem is not None:
            raise InputError(
                f"{self._name} was compiled with guards=False, for inputs like the example's, and "
                f"{problem}. Compile it for these inputs too, or with guards=True, which compiles "
                "again for other inputs"
            )

    def _problem(self, leaves: Sequence[Any], spec: object) -> str | None:
        if spec != self._spec:
            return f"the arguments have a different structure: {spec}, not {self._spec}"
        for i, expected in self._others.items():
            if not _is_equal(leaves[i], expected):
                return f"{self._names[i]} is {_shown(leaves[i])}, not {_shown(expected)}"
        for i, leaf in enumerate(leaves):
            if id(leaf) in self._own_ids and any(leaf is each for each in self._own()):
                return f"{self._names[i]} is a parameter or buffer of it: pass a copy"
        tensors = [leaf for i, leaf in enumerate(leaves) if i not in self._others]
        if self._tensors.check(*tensors):
            return None
        names = [name for i, name in enumerate(self._names) if i not in self._others]
        verbose: str = self._tensors.check_verbose(*tensors, tensor_check_names=names)
        return verbose


def _signature(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """How many arguments a call has, and which keywords."""
    keywords = f" and the keywords {', '.join(sorted(kwargs))}" if kwargs else ""
    return plural(len(args), "positional argument") + keywords


def _names(example: Arguments) -> list[str]:
    """The names of inputs in messages: "args[0]", or "kwargs['x']['y']"."""
    try:
        paths, _ = pytree.tree_flatten_with_path((example.args, dict(example.kwargs)))
    except ValueError as error:  # a class that is registered without the keys of its parts
        raise UnsupportedError(f"an argument cannot be described: {error}") from None
    kinds: list[Any] = ["args", "kwargs"]
    return [kinds[path[0].idx] + pytree.keystr(path[1:]) for path, _ in paths]  # type: ignore[attr-defined]


def _is_equal(value: Any, expected: Any) -> bool:
    """Whether two values are of one type and equal; NaN is equal to NaN."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, float) and isnan(value):
        return isnan(expected)
    return bool(value == expected)


def _shown(value: Any) -> str:
    """A value as a message shows it; of an unknown type only the type's name."""
    return f"{value!r:.99}" if type(value) in _COMPARED else f"a {type(value).__name__}"
