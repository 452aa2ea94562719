"""Dynamo compiles the user's functions only, not what follows when these free memory."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from nimble_fx.torch_internals.dynamo.untraced import when_freed


class Recurrent(nn.Module):
    """Frees its previous state in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.register_buffer("state", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.state: Tensor = x @ self.weight + self.state / 2
        return self.state.relu()


def check(x: Tensor, **options: Any) -> None:
    """Compiles the model and calls it three times: Dynamo compiles one function."""
    counters.clear()
    model, eager = Recurrent().to(x.device), Recurrent().to(x.device)
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="nimble", options=options)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), eager(x))
    assert counters["frames"] == {"total": 1, "ok": 1}


@pytest.mark.parametrize("options", [{}, {"fold_weights": True}, {"device": "virtual"}], ids=str)
def test_only_the_users_functions_are_compiled(options: dict[str, Any]) -> None:
    check(torch.randn(3, 4), **options)


@pytest.mark.gpu
def test_on_a_gpu_too() -> None:
    check(torch.randn(3, 4, device="cuda"))


class Owner:
    """Something that is freed."""


def test_a_callback_is_called_once_after_its_owner_is_gone() -> None:
    owner, seen = Owner(), list[object]()
    when_freed(owner, list.append, seen, 1)
    when_freed(owner, list.append, seen, 2)
    gc.collect()
    assert seen == []
    del owner
    gc.collect()
    assert sorted(map(str, seen)) == ["1", "2"]
