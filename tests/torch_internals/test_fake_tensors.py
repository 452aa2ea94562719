"""A compiled model that is called with fake tensors returns fake tensors."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode

from nimble_fx.torch_internals.fake_tensors import are_fake


def test_values_are_fake_by_type_or_by_mode() -> None:
    mode, x = FakeTensorMode(), torch.ones(2)
    assert are_fake([3, mode.from_tensor(x)])
    assert not are_fake([3, x])
    with mode:
        assert are_fake([])


@pytest.mark.filterwarnings("error:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("options", [{}, {"device": "virtual", "policy": "nimble"}])
def test_a_call_with_fake_tensors_returns_some_and_changes_nothing(
    options: dict[str, Any], train: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).train(train)
    compiled, x = torch.compile(model, backend="nimble", options=options), torch.randn(2, 4)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.set_grad_enabled(train):
        expected = model(x)
        with mode:
            inside = compiled(torch.randn(2, 4))
        model[1].reset_running_stats()  # type: ignore[operator]  # of what `expected` changed
        compiled(x)
        outside = compiled(mode.from_tensor(x))
        for fake in (inside, outside):
            assert isinstance(fake, FakeTensor)
            assert (fake.shape, fake.dtype) == (expected.shape, expected.dtype)
        assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("options", [{}, {"device": "virtual", "policy": "nimble"}])
def test_constants_of_a_program_are_fake_beside_fake_tensors(options: dict[str, Any]) -> None:
    compiled = torch.compile(
        lambda x: x.relu() + torch.arange(8.0), backend="nimble", options=options
    )
    x, mode = torch.randn(8, 8), FakeTensorMode()
    expected = compiled(x)
    with mode:
        assert compiled(mode.from_tensor(x)).shape == (8, 8)
    assert isinstance(compiled(mode.from_tensor(x)), FakeTensor)
    assert torch.equal(compiled(x), expected)
