"""Without guards, calls are only made in the PyTorch state of compile time."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

import nimble_fx
from nimble_fx.errors import FallbackError, InputError, NimbleWarning, UnsupportedError
from nimble_fx.torch_internals.dynamo import entries
from nimble_fx.torch_internals.names import Missing
from tests.support.eager import assert_same
from tests.support.models import Branchy


def test_in_another_state_of_pytorch_it_is_compiled_again() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = compiled(x)
        assert result.dtype == net(x).dtype
    assert len(compiled.programs) == 2


def test_without_a_name_to_compare_states_by_guards_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entries, "_transform", Missing("peek_interpreter_stack"))
    net, x = Branchy(), torch.randn(2, 4)
    with pytest.warns(NimbleWarning, match=r"runs with guards: .*peek_interpreter_stack"):
        compiled = nimble_fx.compile(net, x, guards=False)
    assert_same(compiled(x), net(x).detach())


def test_modes_and_transforms_are_respected_by_compiling_again() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    with torch.inference_mode():
        assert compiled(x).is_inference()
    with torch.no_grad():
        assert_same(torch.vmap(compiled)(x), torch.stack([net(row) for row in x]))


@pytest.mark.parametrize("later", ["cpu", "meta", None])
def test_a_default_device_is_part_of_the_state(later: str | None) -> None:
    def filled(x: Tensor) -> Tensor:
        return torch.zeros(2) + x.shape[0]

    x = torch.ones(2)
    with torch.device("cpu"):
        compiled = nimble_fx.compile(filled, x, guards=False)
        with pytest.raises(InputError, match="size mismatch"):
            compiled(torch.ones(3))
    unknown = pytest.warns(NimbleWarning, match="on meta, which nimble_fx does not know")
    with torch.device(later) if later else nullcontext():
        with unknown if later == "meta" else nullcontext():
            result = compiled(x)
        assert result.device == filled(x).device


def test_weights_are_released_only_if_calls_in_the_same_state_are_possible() -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval()
    x = torch.randn(2, 512)
    expected = net(x).detach()
    with torch.device("cpu"):
        compiled = nimble_fx.compile(net, x, guards=False, release_weights=True)
        torch.testing.assert_close(compiled(x), expected)
    with pytest.raises(UnsupportedError, match="at compile time: the default device"):
        compiled(x)
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval()
    with BaseTorchFunctionMode(), pytest.raises(FallbackError, match="while a mode, a transform"):
        nimble_fx.compile(net, x, guards=False, release_weights=True, on_fallback="error")
    assert net(x).shape == expected.shape
