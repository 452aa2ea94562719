"""Deep copies of modules, with an error that says what cannot be copied."""

import copy
from typing import Any, TypeVar

from torch import nn

from nimble_fx.errors import UnsupportedError

_Module = TypeVar("_Module", bound=nn.Module)


def deep_copy(model: _Module, memo: dict[int, Any]) -> _Module:
    """A deep copy of a module.

    Args:
        model: the module.
        memo: the copies of some objects, by their ids.

    Raises:
        UnsupportedError: an object in it cannot be copied.
    """
    try:
        return copy.deepcopy(model, memo)
    except (TypeError, RuntimeError) as error:
        raise UnsupportedError(
            f"{type(model).__name__} has to be copied, and refers to something that Python cannot "
            f"copy: {error}. Give the class of that a __deepcopy__, or remove it from the model"
        ) from error
