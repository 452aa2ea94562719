"""Assignments to parts of tensors on CUDA: captured, and right in each replay. Needs a GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.eager import assert_same

pytestmark = pytest.mark.gpu


def assigned(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:3] = x[:, :2]
    y[0] += 1
    y[:, mask] = -1
    y[x > 1] = 0
    return y


def in_branches(x: Tensor, mask: Tensor) -> Tensor:
    first, second = x.exp(), x.tanh()
    first[:, mask] = 3
    second[1:] = first[1:].sum()
    return first.sum(0) + second.sum(0)


@pytest.mark.parametrize("function", [assigned, in_branches])
def test_assignments_are_captured_and_right_in_each_replay(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    compiled = torch.compile(function, backend="nimble", options={"policy": "nimble"})
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(4, 6, device="cuda")
            mask = torch.rand(6, device="cuda") > 0.5
            assert_same(compiled(x, mask), function(x, mask))
    (program,) = nimble_fx.programs()
    assert program.status.frozen


class Average(nn.Module):
    """Keeps a running average, and the last values, in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.average: Tensor
        self.seen: Tensor
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("seen", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.seen[1:] = self.seen[:-1].clone()
        self.seen[0] = x[0]
        return x - self.average + self.seen.sum(0)


def test_buffers_are_updated_in_place_once_a_call() -> None:
    ours, theirs = Average().cuda(), Average().cuda()
    compiled = torch.compile(ours, backend="nimble")
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 3, device="cuda")
            assert_same(compiled(x), theirs(x))
            assert_same([ours.average, ours.seen], [theirs.average, theirs.seen])
    (program,) = nimble_fx.programs()
    assert program.status.frozen
    assert torch.ops.aten.copy_.default not in {
        task.target for task in program.graph.tasks if task.writes == ("average",)
    }
