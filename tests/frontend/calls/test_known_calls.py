"""Which entries of Dynamo's cache get an emitted function, and for which calls it is."""

from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import nimble_fx
from nimble_fx.frontend.calls import guarded_call
from nimble_fx.frontend.calls.direct_call import direct_call
from nimble_fx.frontend.calls.guarded_call import MAX_ENTRIES
from nimble_fx.frontend.models.model_function import Arguments
from tests.support.eager import assert_same


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=str)
def test_calls_with_fake_tensors_return_fake_tensors(options: dict[str, Any], allow: bool) -> None:
    x = torch.randn(3, 4)
    compiled = nimble_fx.compile(lambda x: x.relu() + 1, x, on_fallback="error", **options)
    fake = FakeTensorMode(allow_non_fake_inputs=allow).from_tensor(x)
    for _ in range(3):
        assert type(compiled(fake)) is FakeTensor
        assert_same(compiled(x), x.relu() + 1)


class InFloat32(nn.Module):
    """Computes in float32 also under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            result: Tensor = self.layer(x)
            return result


def test_an_entry_that_another_thread_made_is_for_its_state_of_pytorch() -> None:
    model, x = InFloat32().eval(), torch.randn(2, 4)
    compiled = nimble_fx.compile(model, x)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            compiled._guarded._run(x)  # in the other thread, which has not learned from it yet
        compiled._guarded._learn(Arguments((x,), {}))  # in this one, after a call of its own
        with torch.autocast("cpu", torch.bfloat16):
            assert_same(compiled(x), model(x))


def test_with_more_entries_than_are_known_none_is_emitted_in_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emitted: list[FunctionType | None] = []

    def counted(*args: Any) -> FunctionType | None:
        emitted.append(direct_call(*args))
        return emitted[-1]

    monkeypatch.setattr(guarded_call, "direct_call", counted)
    inputs = [torch.randn(n) for n in range(2, MAX_ENTRIES + 6)]
    changes = {"recompile_limit": 64, "automatic_dynamic_shapes": False}
    with torch._dynamo.config.patch(changes):
        compiled = nimble_fx.compile(lambda x: x * 2, inputs[0])
        for _ in range(3):
            for x in inputs:
                assert_same(compiled(x), x * 2)
    assert len(emitted) == MAX_ENTRIES
    assert None not in emitted
