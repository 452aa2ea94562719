"""Only values computed from an optimizer's parameters notice its step."""

import gc
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.runtime.folding.optimizer_steps import StepsOn
from tests.support.accuracy import assert_as_accurate

FUSED = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad]
OPTIMIZERS: list[Any] = [
    *[partial(each, fused=True) for each in FUSED],
    *[partial(each, foreach=True) for each in FUSED],
    *(torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Rprop),
]


class Unknown(torch.optim.Optimizer):
    """Writes to parameters behind PyTorch's back, as kernels of other packages may."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data[3, 5, 1] += 1


def stepped(optimizer: torch.optim.Optimizer, *parameters: Tensor) -> None:
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_a_step_on_a_tensor_is_noticed_and_no_other() -> None:
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    on_one, on_other = StepsOn([one]), StepsOn([other])
    stepped(torch.optim.SGD([one], 1.0, fused=True), one)
    assert (on_one.happened, on_other.happened) == (True, False)
    assert not StepsOn([one]).happened


def test_so_is_one_on_the_memory_that_it_is_a_view_of() -> None:
    flat = nn.Parameter(torch.ones(8))
    steps = StepsOn([flat.detach()[4:].view(2, 2)])
    stepped(torch.optim.SGD([flat], 1.0, fused=True), flat)
    assert steps.happened


def test_parameters_of_other_kinds_are_taken_to_share_any_memory() -> None:
    lazy, weight = nn.UninitializedParameter(), nn.Parameter(torch.ones(2))
    steps = StepsOn([torch.ones(2)])
    stepped(torch.optim.SGD([weight, lazy], 1.0), weight)
    assert steps.happened


def test_who_watches_is_freed() -> None:
    steps = StepsOn([torch.ones(2)])
    reference = weakref.ref(steps)
    del steps
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, Unknown])
def test_weights_are_folded_anew_after_a_step_that_changes_few_of_their_numbers(
    optimizer: Any,
) -> None:
    model = nn.Sequential(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64)).eval()
    weight, x = model.get_parameter("0.weight"), torch.randn(1, 32, 5, 5)
    compiled = torch.compile(model, backend="nimble", options={"fold_weights": True})
    with torch.no_grad():
        compiled(x)
    steps = optimizer([weight])
    weight.grad = torch.zeros_like(weight)
    weight.grad[3, 5, 1] = 1
    steps.step()
    with torch.no_grad():
        assert_as_accurate(model, (x,), compiled(x))


def test_a_compiled_step_is_noticed() -> None:
    weight = nn.Parameter(torch.randn(64, 400))
    compiled = torch.compile(
        lambda x: x @ weight.exp(), backend="nimble", options={"fold_weights": True}
    )
    optimizer, x = torch.optim.Adam([weight], fused=True), torch.randn(2, 64)
    with torch.no_grad():
        compiled(x)
    weight.grad = torch.zeros_like(weight)
    weight.grad[3, 5] = 1
    torch.compile(lambda: optimizer.step(), backend="aot_eager")()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), x @ weight.exp())
