"""An input whose value goes to another input has that value, though it is overwritten before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nimble_fx.rewrites.inductor.overwritten_values import keep_overwritten_values
from tests.support.eager import assert_same
from tests.support.schedules import aten_graph

COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "clone of another shape": lambda x: x.reshape(-1).clone().view_as(x),
    "transposed clone": lambda x: x.t().clone().t(),
    "conversion": lambda x: x.to(torch.float32).clone(),
    "concatenation": lambda x: torch.cat([x]),
    "stack": lambda x: torch.stack([x])[0],
    "padding": lambda x: F.pad(x, (0, 0)),
    "repetition": lambda x: x.repeat(1, 1),
    "power": lambda x: x.pow(1),
    "assignment": lambda x: torch.empty_like(x).copy_(x),
    "nothing": lambda x: x.contiguous(),
    "product": lambda x: x * torch.ones(3, 2),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", COPIES)
def test_the_other_input_gets_the_old_value(name: str, first: bool) -> None:
    def function(*inputs: Tensor) -> None:
        x, y = inputs if first else reversed(inputs)
        old = COPIES[name](x)
        if old is x:
            y.copy_(old)
            x.add_(1)
        else:
            x.add_(1)
            y.copy_(old)

    options: dict[str, Any] = {"kernels": "inductor", "on_fallback": "error"}
    compiled = torch.compile(function, backend="nimble", options=options)
    ours, eagers = ([torch.ones(3, 2), torch.zeros(3, 2)] for _ in range(2))
    for _ in range(2):
        compiled(*ours)
        function(*eagers)
        assert_same(ours, eagers)


class Buffers(nn.Module):
    """Keeps the values before the last ones."""

    current: Tensor
    previous: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("current", torch.zeros(2))
        self.register_buffer("previous", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        result = self.current * 0.5 + x * self.weight
        self.previous.copy_(self.current)
        self.current.copy_(result.detach())
        return result


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kernels", ["inductor", "auto"])
def test_a_buffer_of_previous_values_has_these(kernels: str, train: bool) -> None:
    model, eager, x = Buffers(), Buffers(), torch.ones(2)
    compiled = torch.compile(model, backend="nimble", options={"kernels": kernels})
    with torch.set_grad_enabled(train):
        for _ in range(3):
            assert_same(compiled(x), eager(x))
            assert_same([*model.buffers()], [*eager.buffers()])


def test_what_is_computed_is_not_copied_once_more() -> None:
    def step(weight: Tensor, average: Tensor, slope: Tensor) -> None:
        average.mul_(0.9).add_(slope)
        weight.sub_(average / 2)

    gm = aten_graph(step, torch.ones(2), torch.ones(2), torch.ones(2))
    names = [node.name for node in gm.graph.nodes]
    assert [node.name for node in keep_overwritten_values(gm).graph.nodes] == names


def test_updates_of_parts_are_looked_through_once() -> None:
    def step(state: Tensor, x: Tensor) -> None:
        for i in range(60):
            state[i : i + 2] = state[i : i + 2].clone() + 0 * x if i % 2 else state[i : i + 2]

    gm = aten_graph(step, torch.ones(64), torch.ones(2))
    names = [node.name for node in gm.graph.nodes]
    kept = keep_overwritten_values(gm)  # 2 ** 60 paths lead from the result to the state
    assert [node.name for node in kept.graph.nodes] == names
