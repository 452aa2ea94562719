"""`release_weights=True` frees weights that are only read in folded form."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import nimble_fx
from nimble_fx.errors import FallbackError, NimbleWarning, OptionError, UnsupportedError
from tests.support.accuracy import assert_as_accurate
from tests.support.models import CASES, Branchy


class Convolutions(nn.Module):
    """Weights that are folded, one that is read as it is too, and one that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64)
        self.two, self.head = nn.Conv2d(64, 8, 1), nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(torch.relu(self.norm(self.one(x)))).mean((2, 3))
        result: Tensor = self.head(y)
        return result


def release(model: nn.Module, x: Tensor, **options: Any) -> nimble_fx.Compiled:
    return nimble_fx.compile(model, x, guards=False, release_weights=True, **options)


def test_folded_weights_are_freed_and_calls_are_eagers() -> None:
    model = Convolutions().eval()
    nn.init.normal_(model.norm.running_mean)  # type: ignore[arg-type]
    eager, x = copy.deepcopy(model), torch.randn(2, 3, 8, 8)
    memory = [weakref.ref(each.untyped_storage()) for each in model.one.parameters()]
    compiled = release(model, x)
    gc.collect()
    assert [each() for each in memory] == [None]
    assert {name: value.numel() for name, value in model.state_dict().items()} == {
        **dict.fromkeys(["one.weight", "norm.weight", "norm.bias"], 0),
        **dict.fromkeys(["norm.running_mean", "norm.running_var", "two.weight"], 0),
        "two.bias": 8,
        "head.weight": 32,
        "head.bias": 4,
        "unused": 5,
        "norm.num_batches_tracked": 1,
    }
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        assert_as_accurate(eager, (x,), compiled(x))
    with torch.no_grad():
        for net in (model, eager):
            net.head.weight.mul_(2)
    assert_as_accurate(eager, (x,), compiled(x))


def test_the_fastest_kernels_may_be_without_weights_too() -> None:
    model = Convolutions().eval()
    eager, x = copy.deepcopy(model), torch.randn(2, 3, 8, 8)
    memory = [weakref.ref(each.untyped_storage()) for each in model.one.parameters()]
    compiled = release(model, x, kernels="auto", on_fallback="silent")
    gc.collect()
    assert [each() for each in memory] == [None]
    assert_as_accurate(eager, (x,), compiled(x))


@pytest.mark.parametrize("name", ["googlenet", "lstm", "transformer_dropout"])
def test_models_are_eagers(name: str) -> None:
    model = CASES[name].model().eval()
    eager, inputs = copy.deepcopy(model), CASES[name].inputs()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = release(model, inputs, on_fallback="silent")  # type: ignore[arg-type]
    with torch.no_grad():
        torch.manual_seed(0)
        ours = compiled(*inputs)
        torch.manual_seed(0)
        torch.testing.assert_close(ours, eager(*inputs), rtol=1e-4, atol=1e-5)


def test_memory_that_is_read_elsewhere_stays_and_changes_are_noticed() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.conv(x), self.conv.weight * x.mean()

    model, x = Read().eval(), torch.randn(1, 4, 3, 3)
    with pytest.warns(NimbleWarning, match="with all its weights"):
        compiled = release(model, x)
    for _ in range(2):
        assert_as_accurate(model, (x,), compiled(x))
        with torch.no_grad():
            model.conv.weight.mul_(2)


def test_weights_in_one_memory_with_what_is_read_stay_and_are_noticed() -> None:
    flat, conv = torch.randn(64 * 27 + 64), nn.Conv2d(3, 64, 3).eval()
    assert conv.bias is not None
    conv.weight.data, conv.bias.data = flat[: 64 * 27].view(64, 3, 3, 3), flat[64 * 27 :]
    x = torch.randn(1, 3, 8, 8)
    compiled = release(conv, x, on_fallback="silent")
    with torch.no_grad():
        conv.weight.mul_(2)
    assert_as_accurate(conv, (x,), compiled(x))


def test_a_weight_that_is_returned_stays() -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 64, 3, bias=False), nn.Conv2d(64, 8, 1, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.two(self.one(x)), self.one.weight

    model, x = Returned().eval(), torch.randn(1, 3, 8, 8)
    eager = copy.deepcopy(model)
    compiled = release(model, x)
    assert model.two.weight.numel() == 0
    assert compiled(x)[1] is model.one.weight
    assert_as_accurate(eager, (x,), compiled(x))


def test_a_graph_of_autograd_that_has_saved_a_released_weight_raises() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)).eval()
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    loss = model(x).sum()
    release(model, x.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_new_weight_in_the_place_of_a_released_one_is_an_error(in_place: bool) -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 8, 8)
    compiled = release(model, x)
    weight = torch.randn(64, 3, 3, 3)
    if in_place:
        model.one.weight.data = weight
    else:
        model.one.weight = nn.Parameter(weight)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"place of one\.weight, which was released"):
            compiled(x)


def test_where_weights_would_be_needed_an_error_says_so() -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 8, 8)
    compiled = release(model, x)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(UnsupportedError, match=r"with release_weights=True.*: autocast"),
    ):
        compiled(x)
    with torch.inference_mode(), pytest.raises(UnsupportedError, match=r": torch\.inference_mode"):
        compiled(x)
    with FlopCounterMode(display=False), pytest.raises(UnsupportedError, match=r": a mode"):
        compiled(x)
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode"):
        compiled(forward_ad.make_dual(x, x))
    compiled(x)


def test_where_nothing_is_folded_a_warning_says_that_all_weights_stay() -> None:
    options: dict[str, Any] = {"fold_weights": False}
    model, x = Convolutions().eval(), torch.randn(2, 3, 8, 8)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(NimbleWarning, match="with all its weights"):
        release(model, x, **options)
    with pytest.raises(FallbackError, match="no folded weights"):
        release(model, x, on_fallback="error", **options)
    torch.testing.assert_close(dict(model.state_dict()), dict(before))


def test_it_goes_with_calls_that_check_their_inputs_alone() -> None:
    with pytest.raises(OptionError, match="needs guards=False"):
        nimble_fx.compile(Branchy(), torch.randn(2, 4), release_weights=True)
    with pytest.raises(OptionError, match="release_weights=1 is not valid"):
        nimble_fx.compile(Branchy(), torch.randn(2, 4), guards=False, release_weights=1)  # type: ignore[arg-type]
