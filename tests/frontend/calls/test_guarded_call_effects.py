"""Side effects of a model happen in each call without Dynamo's frame evaluation."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.changing_net import DEVICES
from tests.support.eager import assert_same


@dataclasses.dataclass
class Result:
    """A class that PyTorch's trees do not know."""

    value: Tensor


class Config:
    """An object of the user's, which no module holds."""

    n = 0


GLOBAL: list[Any] = []


def appended(net: Any, x: Tensor) -> Tensor:
    net.seen.append(1)
    return x + len(net.seen)


def counted(net: Any, x: Tensor) -> Tensor:
    net.n += 1
    return x + net.n


def configured(net: Any, x: Tensor) -> Tensor:
    net.config.n += 1
    return x * 2


def stored(net: Any, x: Tensor) -> Tensor:
    net.last = x + 1
    return net.last


def replaced(net: Any, x: Tensor) -> Tensor:
    net.buffer = net.buffer + 1
    return x + net.buffer


def global_list(net: Any, x: Tensor) -> Tensor:
    GLOBAL.append(1)
    return x + len(GLOBAL)


def drawn(net: nn.Module, x: Tensor) -> Tensor:
    return x + random.random()


def written(net: nn.Module, x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def reshaped(net: nn.Module, x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    return x * 2


def a_view(net: nn.Module, x: Tensor) -> Tensor:
    return x[:2]


def itself(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


def of_a_class(net: nn.Module, x: Tensor) -> Result:
    return Result(x + 1)


def with_numbers(net: nn.Module, x: Tensor) -> tuple[Tensor, int, None]:
    return x + 1, len(x), None


def twice(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y, y


def gradients_on(net: nn.Module, x: Tensor) -> Tensor:
    torch.set_grad_enabled(True)
    return x + 1


def broken(net: nn.Module, x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x + 1


EFFECTS = [
    *(appended, counted, configured, stored, replaced, global_list, drawn, written, reshaped),
    *(a_view, itself, of_a_class, with_numbers, twice, gradients_on, broken),
]


class Effect(nn.Module):
    """Calls one of these functions."""

    def __init__(self, effect: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.effect, self.n, self.config, self.seen = effect, 0, Config(), list[int]()
        self.buffer: Tensor
        self.register_buffer("buffer", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        return self.effect(self, x)


def state_after(effect: Effect, call: Callable[[Tensor], Any]) -> list[Any]:
    """Results, arguments and state of several calls; from the same global state each time."""
    GLOBAL.clear()
    random.seed(0)
    effect.config.n = 0  # nimble_fx.compile does not look into objects
    seen: list[Any] = []
    for i in range(5):
        x = torch.full((4,), float(i))
        with torch.no_grad():
            result = call(x)
            grad_mode = torch.is_grad_enabled()
        values = list(vars(result).values()) if isinstance(result, Result) else [result]
        shares = [y.untyped_storage()._cdata == x.untyped_storage()._cdata for y in tensors(values)]
        same = [y is x for y in tensors(values)], len({id(y) for y in tensors(values)})
        numbers = [effect.n, effect.config.n, *effect.seen, len(GLOBAL), grad_mode]
        kept = [effect.buffer.clone(), getattr(effect, "last", None)]
        seen.append([values, x, shares, same, numbers, kept])
    return seen


def tensors(values: list[Any]) -> list[Tensor]:
    """The tensors in a list or in a tuple in it."""
    flat = [each for value in values for each in (value if isinstance(value, tuple) else [value])]
    return [value for value in flat if isinstance(value, Tensor)]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
@pytest.mark.parametrize("options", DEVICES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_what_a_model_does_beside_its_program_it_does_in_each_call(
    effect: Callable[[nn.Module, Tensor], Any], options: dict[str, Any]
) -> None:
    ours, eager = Effect(effect), Effect(effect)
    compiled = nimble_fx.compile(ours, torch.zeros(4), **options)
    assert_same(state_after(ours, compiled), state_after(eager, eager))


def test_a_list_among_the_arguments_is_written_to_in_each_call() -> None:
    def program(x: Tensor, seen: list[Tensor]) -> Tensor:
        seen[0] = x + 1
        return seen[0]

    x = torch.ones(2)
    compiled = nimble_fx.compile(program, (x, [x]))
    for _ in range(3):
        seen = [x]
        assert compiled(x, seen) is seen[0] is not x
