"""A copy that shares tensors computes what the original does, whatever becomes of those."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.frontend.models.shared_copy import shared_copy
from tests.support.eager import assert_same


class Stateful(nn.Module):
    """A buffer that is replaced in each call, a tensor that is none, and normalization."""

    n_calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("n_calls", torch.zeros(()))
        self.cache = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls = self.n_calls + 1
        self.cache.add_(x.detach().sum(0))
        result: Tensor = self.norm(self.linear(x)) * self.n_calls + self.cache
        return result


def set_weight(model: Stateful) -> None:
    model.linear.weight = nn.Parameter(torch.full_like(model.linear.weight, 2.0))


def set_statistics(model: Stateful) -> None:
    model.norm.running_mean = torch.ones_like(model.norm.running_mean)  # type: ignore[arg-type]


def load(model: Stateful) -> None:
    state = {name: value.clone() * 3 for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


CHANGES: dict[str, Callable[[Stateful], Any]] = {
    "another dtype": nn.Module.double,
    "another weight": set_weight,
    "other statistics": set_statistics,
    "a checkpoint's tensors": load,
    "a cache that begins again": lambda model: model.cache.zero_(),
    "tied weights": lambda model: setattr(model.norm, "bias", model.norm.weight),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_prepared_model_is_eagers_after_what_changes_the_original(change: str) -> None:
    model, x = Stateful().eval(), torch.randn(3, 4)
    prepared = nimble_fx.Nimble(model)
    prepared.prepare(x)
    eager = copy.deepcopy(model)
    for each in (model, eager):
        CHANGES[change](each)
    x = x.to(eager.linear.weight.dtype)
    for _ in range(2):
        with torch.no_grad():
            assert_same(prepared(x), eager(x))
        assert_same(dict(model.state_dict()), dict(eager.state_dict()))
        assert_same(model.cache, eager.cache)


def test_mode_and_structure_are_its_own() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    copied = shared_copy(model).train()
    copied[0] = nn.Identity()
    assert not any(part.training for part in model.modules())
    assert isinstance(model[0], nn.Linear)


def test_results_that_a_module_has_kept_are_shared() -> None:
    """As by the hooks of `torch.nn.utils.weight_norm`; PyTorch copies no such tensors."""
    layer = nn.utils.weight_norm(nn.Linear(4, 3))
    assert not layer.weight.is_leaf
    x = torch.randn(2, 4)
    assert_same(shared_copy(layer)(x), layer(x))
