"""Copies of modules that share all tensors with the original, now and later."""

from typing import Any, TypeVar

from torch import nn

from nimble_fx.frontend.models.deep_copy import deep_copy
from nimble_fx.torch_internals.leaves import tensors_in

_Module = TypeVar("_Module", bound=nn.Module)


def shared_copy(model: _Module) -> _Module:
    """A copy with a structure and mode of its own and the tensors of the original.

    Parameters and buffers that are replaced later, in either of the two, are replaced in both.
    Other attributes are copied; the tensors among them are the original's until one of the two
    replaces its own.
    """
    memo: dict[int, Any] = {}
    for part in model.modules():
        attributes = vars(part)
        memo |= {id(tensor): tensor for tensor in tensors_in(attributes)}
        registered = [attributes.get(name) for name in ("_parameters", "_buffers")]
        memo |= {id(tensors): tensors for tensors in registered if isinstance(tensors, dict)}
    return deep_copy(model, memo)
