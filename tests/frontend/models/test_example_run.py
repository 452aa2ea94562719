"""An example run is one call and its backward, and leaves no gradients behind."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.errors import OptionError
from nimble_fx.frontend.models.example_run import run_example
from nimble_fx.frontend.models.model_function import Arguments


def test_every_backward_runs_once_and_accumulates_nowhere() -> None:
    ran: list[str] = []

    class Notes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
            ctx.name = name
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            ran.append(ctx.name)
            return gradient, None

    hidden, x = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)

    def program(x: Tensor) -> dict[str, Any]:
        both: Tensor = Notes.apply(x, "x") + Notes.apply(hidden, "hidden")
        return {"both": both, "list": [Notes.apply(hidden, "again"), 3], "none": None}

    run_example(program, Arguments((x,), {}), training=True)
    assert sorted(ran) == ["again", "hidden", "x"]
    assert x.grad is None
    assert hidden.grad is None


def test_the_grad_mode_is_that_of_the_purpose_whatever_the_callers() -> None:
    modes: list[bool] = []
    x = torch.ones(2, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        modes.append(torch.is_grad_enabled())
        return x * 2

    for training in (False, True):
        with torch.no_grad():
            run_example(program, Arguments((x,), {}), training)
        assert torch.is_grad_enabled()
        run_example(program, Arguments((x,), {}), training)
    assert modes == [False, False, True, True]


def test_training_without_an_output_that_has_a_gradient_is_refused() -> None:
    with pytest.raises(OptionError, match="needs an output that has a gradient"):
        run_example(torch.sin, Arguments((torch.ones(2),), {}), training=True)
