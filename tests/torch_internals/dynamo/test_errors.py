"""Errors for the user look and pickle like the public errors, and Dynamo does not wrap them."""

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nimble_fx.errors import (
    FallbackError,
    NimbleError,
    OptionError,
    PassError,
    UnsupportedError,
)
from nimble_fx.torch_internals.dynamo.errors import for_user

ERRORS: list[NimbleError] = [
    OptionError("no such option"),
    PassError("pass reduce raised"),
    UnsupportedError("no kernel", node="add", source="model.py:3"),
    FallbackError("would run unfrozen", node="add"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_dynamo_does_not_wrap_it(error: NimbleError) -> None:
    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        raise for_user(error)

    with pytest.raises(type(error)) as caught:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert str(caught.value) == str(error)  # without Dynamo's hint for reports to PyTorch
    last = traceback.format_exception_only(caught.value)[0]
    assert last.startswith(f"nimble_fx.errors.{type(error).__name__}: ")


@pytest.mark.parametrize("error", ERRORS)
def test_it_unpickles_as_the_public_error_with_its_attributes(error: NimbleError) -> None:
    shown = for_user(error)
    copied = pickle.loads(pickle.dumps(shown))
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))
    assert {name: getattr(shown, name) for name in vars(error)} == vars(error)
