"""Frozen programs that write to inputs and parameters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.runtime.launch import AsTraced
from tests.support.eager import (
    assert_same,
)
from tests.support.replaying import ReplayingDevice, frozen


def test_buffers_that_were_made_in_inference_mode_are_written_to(device: ReplayingDevice) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen: Tensor
            return self.seen.add_(x) * 2

    with torch.inference_mode():
        model, eager = Counts(), Counts()
        compiled = torch.compile(model, backend="nimble")
        for _ in range(3):
            assert_same(compiled(torch.ones(3)), eager(torch.ones(3)))
    assert (device.n_captures, device.n_replays) == (1, 3)


def test_inputs_that_share_memory_which_is_written_are_not_copied_to_a_graph(
    device: ReplayingDevice,
) -> None:
    run = frozen(lambda x, y: x.add_(1) * y, torch.zeros(3), torch.zeros(3), device=device)
    shared = list[tuple[str, ...]]()

    run._launcher._as_traced = AsTraced(lambda args: [], lambda *names: shared.append(names))
    x = torch.zeros(3)
    for other in (x, torch.zeros(3), x):  # before and after a capture
        run([x, other])
    assert (len(shared), device.n_captures) == (2, 1)


def test_a_parameter_that_has_a_gradient_is_written_to_within_a_graph(
    device: ReplayingDevice,
) -> None:
    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.add_(x) * 2

    model, x = Moves(), torch.ones(3)
    compiled = torch.compile(model, backend="nimble")
    for n in (1.0, 2.0):
        with torch.no_grad():
            assert_same(compiled(x), torch.full((3,), 2 * n))
    assert (device.n_captures, nimble_fx.fallbacks()) == (1, ())


@pytest.mark.parametrize(
    ("select", "from_start"),
    [(lambda x: x[1:], lambda x: x[:-1]), (lambda x: x[:, 1:5], lambda x: x[:, :4])],
)
def test_views_of_a_written_input_begin_where_it_does(
    select: Callable[[Tensor], Tensor], from_start: Callable[[Tensor], Tensor]
) -> None:
    """With symbolic sizes AOTAutograd takes their offsets from what the program returns."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        x[0] = x[0] + 1
        later = x.narrow(0, 1, x.shape[0] - 1)
        return later, later * 2

    options: dict[str, Any] = {"device": "virtual", "on_fallback": "silent"}
    run = torch.compile(program, backend="nimble", dynamic=True, options=options)
    for shape in ((4, 6), (5, 6), (4, 7)):
        ours = torch.arange(float(shape[0] * shape[1])).view(shape)
        eagers = ours.clone()
        torch.testing.assert_close(run(select(ours)), program(select(eagers)))
        torch.testing.assert_close(ours, eagers)
    reason = "it writes to an input with a storage offset"
    assert all(reason in fallback.reason for fallback in nimble_fx.fallbacks())
    assert nimble_fx.fallbacks()
    assert not any(each.status.frozen for each in nimble_fx.programs())
    run(from_start(torch.ones(5, 6)))
    assert any(each.status.frozen for each in nimble_fx.programs())


def test_written_inputs_with_an_offset_are_copied_if_no_view_of_them_is_returned() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x, (x * 2).sum(0)

    options: dict[str, Any] = {"device": "virtual", "on_fallback": "error"}
    run = torch.compile(program, backend="nimble", dynamic=True, options=options)
    for n in (4, 5):
        ours = torch.zeros(n, 6)
        eagers = ours.clone()
        torch.testing.assert_close(run(ours[1:]), program(eagers[1:]))
        torch.testing.assert_close(ours, eagers)
    assert [each.status.frozen for each in nimble_fx.programs()] == [True]
