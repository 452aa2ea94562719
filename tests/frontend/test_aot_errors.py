"""The errors of `nimble_fx.compile`."""

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import nimble_fx
from nimble_fx.errors import OptionError, UnsupportedError
from tests.support.models import Branchy


def test_inputs_of_another_kind_are_refused() -> None:
    with pytest.raises(OptionError, match="example_inputs is int; it takes a tensor"):
        nimble_fx.compile(Branchy(), 3)
    for take in (nimble_fx.compile, nimble_fx.plan):
        with pytest.raises(OptionError, match="example_inputs has the key 1, which is no name"):
            take(Branchy(), {1: torch.ones(2, 4)})
    with pytest.raises(
        OptionError, match=r"an object of type str is not a model; it takes a torch.nn.Module"
    ):
        nimble_fx.compile("Branchy", torch.ones(2, 4))


@pytest.mark.parametrize("options", [{"polcy": 1}, {"policy": "x"}, {"max_streams": 0}])
def test_a_bad_option_is_refused_before_any_work(options: dict[str, Any]) -> None:
    def program(x: Tensor) -> Tensor:
        raise AssertionError("called")

    with pytest.raises(OptionError, match=r"valid|takes"):
        nimble_fx.compile(program, torch.ones(2), **options)


def test_training_without_gradients_is_refused() -> None:
    with pytest.raises(OptionError, match="training=True needs an output that has a gradient"):
        nimble_fx.compile(Branchy().requires_grad_(False), torch.ones(2, 4), training=True)


def test_so_is_training_in_inference_mode() -> None:
    with torch.inference_mode(), pytest.raises(OptionError, match=r"not valid in torch\.inference"):
        nimble_fx.compile(Branchy(), torch.ones(2, 4), training=True)


def test_parameters_without_a_shape_are_refused() -> None:
    with pytest.raises(OptionError, match=r"LazyLinear has .*weight.*call it once"):
        nimble_fx.compile(nn.LazyLinear(2), torch.ones(2, 4))


def test_buffers_without_a_shape_or_data_are_refused_too() -> None:
    model = nn.Linear(4, 2)
    model.register_buffer("scale", nn.UninitializedBuffer())
    with pytest.raises(OptionError, match=r"Linear has .*scale.*call it once"):
        nimble_fx.compile(model, torch.ones(2, 4))
    model.scale = torch.ones(2, device="meta")
    with pytest.raises(OptionError, match=r"Linear has .* 'meta', .*nimble_fx\.plan"):
        nimble_fx.compile(model, torch.ones(2, 4))


@pytest.mark.parametrize(("model", "x"), [("meta", "cpu"), ("cpu", "meta"), ("meta", "meta")])
def test_what_has_no_data_is_sent_to_plan(model: str, x: str) -> None:
    with pytest.raises(OptionError, match=r"Linear has .* 'meta', .*nimble_fx\.plan"):
        nimble_fx.compile(nn.Linear(4, 2, device=model), torch.ones(2, 4, device=x))


@pytest.mark.parametrize("of", ["model", "input", "both"])
def test_so_is_what_is_fake(of: str) -> None:
    """A deep copy of a fake tensor would have memory that is not its own."""
    fake, real = FakeTensorMode(), nullcontext()
    with fake if of != "input" else real:
        model = nn.Linear(4, 2)
    with fake if of != "model" else real:
        x = torch.ones(2, 4)
    with pytest.raises(OptionError, match=r"Linear has .* fake\).*nimble_fx\.plan"):
        nimble_fx.compile(model, x)


class Unlike(Tensor):
    """Has no copies, because operators on it return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def test_an_input_that_cannot_be_copied_is_named() -> None:
    x = torch.ones(2, 4).as_subclass(Unlike)
    with pytest.raises(UnsupportedError, match="an example input is a Unlike, which Python cannot"):
        nimble_fx.compile(nn.Linear(4, 2), x)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_refuses_to_be_pickled_and_copied_and_says_what_to_do(copied: Any) -> None:
    compiled = nimble_fx.compile(Branchy(), torch.randn(2, 4))
    with pytest.raises(UnsupportedError, match=r"compiled Branchy cannot.*copy its \.model"):
        copied(compiled)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.ones(2, 4), r"RuntimeError: (addmm: )?mat1 and mat2 .*2x4 and 3x3"),
        ((torch.ones(2, 3), 3), "TypeError: .* takes 2 positional arguments"),
        ((), "TypeError: .* missing 1 required"),
        ({"x": torch.ones(2, 3)}, r"TypeError: .* keyword argument 'x'.* pass \(dict,\)"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_inputs_that_the_model_does_not_take_are_said_to_be_so(
    inputs: Any, message: str, training: bool
) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(OptionError, match=f"Linear, called as it is .* raises {message}"):
        nimble_fx.compile(model, inputs, training=training)
    assert nimble_fx.compile(model, torch.ones(2, 3))(torch.zeros(2, 3)).equal(
        model.bias.expand(2, 3)
    )


@pytest.mark.parametrize(
    ("wrong", "meant"), [("trainng", "training"), ("guard", "guards"), ("polcy", "policy")]
)
def test_a_misspelled_argument_is_named(wrong: str, meant: str) -> None:
    options: dict[str, Any] = {wrong: True}
    with pytest.raises(OptionError, match=f"unknown option '{wrong}'; did you mean '{meant}'"):
        nimble_fx.compile(torch.nn.Linear(2, 2), torch.ones(2, 2), **options)
