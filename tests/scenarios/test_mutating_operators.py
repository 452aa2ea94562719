"""Custom operators that write to their arguments, as those of paged KV caches do."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import NimbleWarning
from nimble_fx.fallback import AS_TRACED

pytestmark = pytest.mark.slow


@torch.library.custom_op("test_mutating_operators::push", mutates_args=("rows",))
def push(rows: Tensor, row: Tensor) -> None:
    """Puts a row before the others, of which the last one falls out."""
    rows.copy_(torch.roll(rows, 1, 0))
    rows[0] = row


@push.register_fake
def _(rows: Tensor, row: Tensor) -> None:
    pass


class Remembers(nn.Module):
    """Two branches beside a buffer that the operator writes to, between two reads of it."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("rows", torch.zeros(3, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.rows.sum(0)
        push(self.rows, torch.tanh(x).mean(0))
        after = self.rows * 2
        push(self.rows, before)
        branches: Tensor = self.left(x).relu() + self.right(x).sigmoid()
        return branches + after.mean(0), before


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("device", [{}, {"device": "virtual", "policy": "nimble"}], ids=str)
@pytest.mark.parametrize("kernels", ["aten", "inductor", "auto"])
@pytest.mark.filterwarnings("ignore:.*as traced, without a schedule.*")
def test_they_write_as_often_and_at_the_same_place_as_in_eager(
    kernels: str, device: dict[str, Any], training: bool
) -> None:
    model = Remembers().train(training)
    eager = copy.deepcopy(model)
    options: dict[str, Any] = {"kernels": kernels, **device}
    compiled = torch.compile(model, backend="nimble", options=options)
    for _ in range(3):
        x = torch.randn(2, 8)
        with torch.set_grad_enabled(training):
            ours, expected = compiled(x), eager(x)
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(model.rows, eager.rows)
        if training:
            for result in (ours, expected):
                result[0].square().sum().backward()
    torch.testing.assert_close(
        [p.grad for p in model.parameters()], [p.grad for p in eager.parameters()]
    )


@pytest.mark.parametrize("policy", ["auto", "serial", "nimble"])
@pytest.mark.parametrize("kernels", ["aten", "inductor", "auto"])
def test_one_warning_says_how_the_model_runs(kernels: str, policy: str) -> None:
    options: dict[str, Any] = {"kernels": kernels, "policy": policy}
    with torch.no_grad(), pytest.warns(NimbleWarning) as warned:
        torch.compile(Remembers().eval(), backend="nimble", options=options)(torch.randn(2, 8))
    (warning,) = warned
    assert "as traced, without a schedule" in str(warning.message)
    assert "push(self.rows" in str(warning.message)
    assert [fallback.runs for fallback in nimble_fx.fallbacks()] == [AS_TRACED]
