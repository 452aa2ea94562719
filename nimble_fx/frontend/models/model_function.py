"""Models of any kind as functions that Dynamo traces, and the arguments to call them with."""

import copy
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from nimble_fx.errors import OptionError, UnsupportedError
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import pytree
from nimble_fx.torch_internals.storages import with_math_bits


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def parse(example_inputs: object, example_kwargs: object = None) -> "Arguments":
        """The arguments that example inputs stand for.

        Raises:
            OptionError: they are neither a tensor, nor a tuple or list, nor a dict by name; or
                the keyword arguments are no dict by name, or come twice.
        """
        keywords = {} if example_kwargs is None else _by_name(example_kwargs, "example_kwargs")
        if isinstance(example_inputs, Tensor):
            return Arguments((example_inputs,), keywords)
        if isinstance(example_inputs, (tuple, list)):
            return Arguments(tuple(example_inputs), keywords)
        if isinstance(example_inputs, Mapping):
            if example_kwargs is not None:
                raise OptionError("example_inputs is a dict of keyword arguments already")
            return Arguments((), _by_name(example_inputs, "example_inputs"))
        raise OptionError(
            f"example_inputs is {type(example_inputs).__name__}; it takes a tensor (the one "
            "argument), a tuple or list (positional arguments), or a dict (keyword arguments)"
        )

    @property
    def leaves(self) -> list[Any]:
        """The values in them that are not containers."""
        return pytree.tree_leaves((self.args, self.kwargs))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among them."""
        return tensors_in((self.args, self.kwargs))

    @property
    def others(self) -> list[Any]:
        """The objects among them that are no tensors, which calls may change."""
        return [leaf for leaf in self.leaves if not isinstance(leaf, Tensor)]

    def with_tensors(self, replaced: Callable[[Tensor], Tensor]) -> "Arguments":
        """The same arguments with each tensor `x` replaced by `replaced(x)`."""
        replacements = {id(tensor): replaced(tensor) for tensor in self.tensors}
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda tensor: replacements[id(tensor)], (self.args, self.kwargs)
        )
        return Arguments(args, kwargs)

    def copies(self) -> "Arguments":
        """The arguments with copies of all tensors; copies share memory if the tensors do."""
        memo: dict[int, Any] = {}
        return self.with_tensors(lambda tensor: _copy(tensor, memo))


def _by_name(keywords: object, option: str) -> dict[str, Any]:
    if not isinstance(keywords, Mapping):
        raise OptionError(f"{option} is {type(keywords).__name__}; it takes a dict")
    for name in keywords:
        if not isinstance(name, str):
            raise OptionError(f"{option} has the key {name!r:.99}, which is no name")
    return dict(keywords)


def _copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A copy of the tensor that is a leaf of autograd; inference tensors stay inference tensors."""
    with torch.inference_mode(tensor.is_inference()):
        if tensor.layout is not torch.strided:  # without a storage, which deepcopy would ask for
            copied = tensor.detach().clone()
        elif tensor.is_conj() or tensor.is_neg():  # deepcopy would resolve them
            bits = tensor.is_conj(), tensor.is_neg()
            bare = with_math_bits(tensor.detach(), *bits)
            copied = with_math_bits(_deep_copy(bare, memo), *bits)
        else:
            copied = _deep_copy(tensor if tensor.is_leaf else tensor.detach(), memo)
        return copied.requires_grad_(tensor.requires_grad)


def _deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    try:
        return copy.deepcopy(tensor, memo)
    except (TypeError, RuntimeError) as error:
        raise UnsupportedError(
            f"an example input is a {type(tensor).__name__}, which Python cannot copy ({error}); "
            "give the class a __deepcopy__"
        ) from error


def unique_function(model: Callable[..., Any]) -> FunctionType:
    """A function that calls the model, with a code object and name of its own.

    Dynamo caches compiled code, and which sizes have changed, by code object or by its file, line
    and name. With a function of its own, the model's other callers share none of these entries,
    and `torch_internals.dynamo.caches.drop_compiled` can free them.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        for _ in kwargs:  # Dynamo guards the order of what is iterated over, but not of `**`
            pass
        return model(*args, **kwargs)

    code = forward.__code__.replace(co_name=f"forward_{uuid.uuid4().hex}")
    return FunctionType(code, globals(), "forward", None, forward.__closure__)


def named_parameters(model: Callable[..., Any]) -> frozenset[str]:
    """The parameters that get keywords by name, so that the model cannot see their order.

    None of them do if a hook, a `__call__` of the model's own or an unknown kind of function gets
    the keywords first.
    """
    if isinstance(model, nn.Module):
        if model._forward_pre_hooks_with_kwargs or type(model).__call__ is not nn.Module.__call__:
            return frozenset()
        model = model.forward
    function = getattr(model, "__func__", model)
    if not isinstance(function, FunctionType):
        return frozenset()
    code = function.__code__  # not the signature, which may be that of a function it wraps
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def name_of(model: object) -> str:
    """The name of a model for messages: its class, or the function's name."""
    return str(getattr(model, "__name__", None) or type(model).__name__)
