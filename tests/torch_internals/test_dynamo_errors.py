"""An error for the user looks and pickles like the public error, and Dynamo does not wrap it."""

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
from nimble_fx.torch_internals.dynamo_errors import for_user

ERRORS: list[tuple[NimbleError, type[NimbleError]]] = [
    (OptionError("no such option"), OptionError),
    (PassError("pass reduce raised"), PassError),
    (UnsupportedError("no kernel", node="add", source="model.py:3"), UnsupportedError),
    (FallbackError("would run unfrozen", node="add"), UnsupportedError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_dynamo_does_not_wrap_it(error: NimbleError, kind: type[NimbleError]) -> None:
    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        raise for_user(error, kind)

    with pytest.raises(kind) as caught:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert str(caught.value).startswith(str(error))  # Dynamo appends how to see more
    last = traceback.format_exception_only(caught.value)[0]
    assert last.startswith(f"nimble_fx.errors.{kind.__name__}: ")


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_it_unpickles_as_the_public_error_with_its_attributes(
    error: NimbleError, kind: type[NimbleError]
) -> None:
    shown = for_user(error, kind)
    copied = pickle.loads(pickle.dumps(shown))
    assert type(copied) is kind
    assert (str(copied), vars(copied)) == (str(error), vars(error))
    assert {name: getattr(shown, name) for name in vars(error)} == vars(error)
