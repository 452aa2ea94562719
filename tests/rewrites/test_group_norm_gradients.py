"""Gradients of a normalization's weights alone, which crash in some versions of PyTorch."""

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.rewrites import group_norm_gradients
from nimble_fx.rewrites.group_norm_gradients import keep_gradients_of_images
from tests.support.schedules import aten_graph

gradients = torch.ops.aten.native_group_norm_backward


def of_weights(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> list[Tensor]:
    _, of_weight, of_bias = gradients(x, x, mean, rstd, weight, 2, 4, 9, 2, [False, True, True])
    return [of_weight, of_bias]


def arguments() -> tuple[Tensor, ...]:
    return torch.randn(2, 4, 3, 3), torch.randn(2, 2), torch.rand(2, 2), torch.randn(4)


def test_the_gradient_of_images_is_computed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()
    gm = aten_graph(of_weights, *args)
    for crashes in (False, True):
        monkeypatch.setattr(group_norm_gradients, "_CRASHES", crashes)
        gm = keep_gradients_of_images(gm)
        (node,) = gm.graph.find_nodes(op="call_function", target=gradients.default)
        assert node.args[-1] == [crashes, True, True]
        assert isinstance(node.meta["val"][0], Tensor) == crashes
        torch.testing.assert_close(gm(*args), of_weights(*args))


def test_what_wants_no_gradient_or_that_of_images_is_left_alone() -> None:
    def program(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> list[Tensor]:
        of_images, *_ = gradients(x, x, mean, rstd, weight, 2, 4, 9, 2, [True, False, False])
        return [of_images]

    gm = aten_graph(program, *arguments())
    (node,) = keep_gradients_of_images(gm).graph.find_nodes(
        op="call_function", target=gradients.default
    )
    assert node.args[-1] == [True, False, False]


def test_weights_are_trained_on_images_in_the_channels_last_format() -> None:
    torch.manual_seed(0)
    model, x = nn.GroupNorm(2, 4), torch.randn(3, 4, 5, 5)
    compiled = torch.compile(model, backend="nimble")
    loss = compiled(x.to(memory_format=torch.channels_last)).square().sum()
    ours, theirs = (
        torch.autograd.grad(each, list(model.parameters()))
        for each in (loss, model(x).square().sum())
    )
    torch.testing.assert_close(ours, theirs)
