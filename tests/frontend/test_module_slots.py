"""Parameters and buffers are fetched from where they are, if that is one place."""

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.frontend.module_slots import slots_of
from tests.support.models import CASES, Branchy


def all_tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("name", CASES)
def test_what_is_fetched_is_what_named_parameters_and_buffers_return(name: str) -> None:
    model = CASES[name].model()
    tensors = all_tensors(model)[::-1]
    slots = slots_of(model, tensors)
    n_places = len(list(model.named_parameters(remove_duplicate=False)))
    if n_places != len(list(model.parameters())):
        assert slots is None
        return
    assert slots is not None
    assert [id(x) for x in slots.tensors()] == [id(x) for x in tensors]
    with torch.no_grad():
        for module in model.modules():
            for key, value in list(module._parameters.items()):
                module._parameters[key] = None if value is None else nn.Parameter(value + 1)
    assert [id(x) for x in slots.tensors()] == [id(x) for x in all_tensors(model)[::-1]]
    assert slots.are_same_modules


def test_a_tensor_in_no_place_or_in_two_has_no_slot() -> None:
    model = Branchy()
    assert slots_of(model, [torch.ones(1)]) is None
    model.a.weight = model.b.weight
    assert slots_of(model, [model.a.weight]) is None
    shared = nn.ModuleList([nn.Linear(1, 1)] * 2)
    assert slots_of(shared, list(shared.parameters())) is None


def test_a_module_that_was_replaced_on_the_way_is_noticed() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.Linear(1, 1))
    inner = model[0]
    assert isinstance(inner, nn.Sequential)
    slots = slots_of(model, [inner[0].weight])  # type: ignore[list-item]
    assert slots is not None
    model[1] = nn.Linear(1, 1)
    inner[1] = nn.Linear(1, 1)
    assert slots.are_same_modules
    first = inner[0]
    inner[0] = nn.Linear(1, 1)
    assert not slots.are_same_modules
    inner[0] = first
    assert slots.are_same_modules
    model[0] = nn.Sequential(*inner)
    assert not slots.are_same_modules


def test_a_parameter_of_the_model_itself_has_no_module_on_the_way() -> None:
    model = nn.Linear(1, 1)
    slots = slots_of(model, [model.bias])
    assert slots is not None
    assert slots.are_same_modules
    assert slots.tensors() == [model.bias]
