"""A module that Python cannot copy is an error that says what has to be copied."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nimble_fx
from nimble_fx.errors import UnsupportedError


@pytest.mark.parametrize(
    "use",
    [
        lambda model, x: nimble_fx.plan(model, x, device="h100"),
        lambda model, x: nimble_fx.Nimble(model).prepare(x),
    ],
)
def test_what_python_cannot_copy_is_an_error_that_says_so(use: Callable[..., object]) -> None:
    model = nn.Linear(2, 2)
    model.__dict__["lock"] = threading.Lock()
    with pytest.raises(UnsupportedError, match=r"Linear has to be copied, .*_thread\.lock"):
        use(model, torch.ones(1, 2))
