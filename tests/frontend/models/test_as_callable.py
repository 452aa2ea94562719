"""TorchScript returns what it does in eager, and what PyTorch cannot convert is a clear error."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import OptionError, UnsupportedError
from tests.support.eager import assert_same


class Both(NamedTuple):
    """A named tuple."""

    one: Tensor
    other: Tensor


def one(x: Tensor) -> Tensor:
    return x * 2


def a_tuple(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x + 1


def nested(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x * 2, [x + 1, x * 3]


def a_dict(x: Tensor) -> dict[str, tuple[Tensor, list[Tensor]]]:
    return {"a": (x * 2, [x + 1]), "b": (x, [x * 3])}


def optional(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None] | None:
    return x + 1, (x, x * 2)


FUNCTIONS: tuple[Callable[[Tensor], Any], ...] = (one, a_tuple, nested, a_dict, optional)


@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_scripted_function_returns_its_containers(
    function: Callable[[Tensor], Any], guards: bool
) -> None:
    scripted, x = torch.jit.script(function), torch.randn(3)
    compiled = nimble_fx.compile(scripted, x, guards=guards, on_fallback="silent")
    assert_same(compiled(x), scripted(x))
    assert repr(compiled(x)) == repr(scripted(x))  # of the same types


def test_a_named_tuple_is_a_tuple() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Both:
            return Both(x * 2, x + 1)

    scripted, x = torch.jit.script(Model()), torch.randn(3)
    compiled = nimble_fx.compile(scripted, x)
    assert_same(compiled(x), tuple(scripted(x)))


def test_an_example_without_a_default_of_torchscripts_is_an_error_that_names_it() -> None:
    scripted, x = torch.jit.script(torch.nn.functional.relu), -torch.ones(3)
    with pytest.raises(OptionError, match=r"relu takes input, inplace, .* lacks inplace"):
        nimble_fx.compile(scripted, x)
    assert_same(nimble_fx.compile(scripted, (x, False))(x, False), torch.zeros(3))


def test_what_pytorch_cannot_convert_is_an_error_that_says_so() -> None:
    scripted = torch.jit.script(nn.BatchNorm1d(3))
    with pytest.raises(UnsupportedError, match=r"convert the TorchScript of BatchNorm1d: .*prim"):
        nimble_fx.compile(scripted, torch.randn(4, 3))


def test_a_module_may_call_itself_anything() -> None:
    class Model(nn.Module):
        def __init__(this) -> None:  # noqa: N805
            super().__init__()
            this.linear = nn.Linear(2, 2)

        def forward(this, x: Tensor) -> Tensor:  # noqa: N805
            result: Tensor = this.linear(x)
            return result

    scripted, x = torch.jit.script(Model()), torch.ones(1, 2)
    assert_same(nimble_fx.compile(scripted, x)(x), scripted(x))


def test_an_assignment_that_pytorch_would_leave_out_is_an_error() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    with pytest.raises(UnsupportedError, match="Model assigns to its attribute calls, which is no"):
        nimble_fx.compile(torch.jit.script(Model()), torch.ones(2))


def difference(x: Tensor, y: Tensor) -> Tensor:
    return x - y


@pytest.mark.parametrize("take", [nimble_fx.compile, nimble_fx.plan])
def test_arguments_of_torchscript_are_passed_by_position(take: Any) -> None:
    scripted, x = torch.jit.script(difference), torch.ones(2)
    for inputs, keywords in ((x, {"y": x}), ({"x": x, "y": x}, None)):
        with pytest.raises(OptionError, match="takes x, y: pass all by position"):
            take(scripted, inputs, example_kwargs=keywords)
    take(scripted, (x, x))
