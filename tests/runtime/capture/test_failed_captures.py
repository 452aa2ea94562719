"""A failed capture is a fallback that leaves nothing behind; an error of the program is not."""

import warnings
import weakref

import pytest
import torch
from torch import Tensor

from nimble_fx.errors import NimbleWarning
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from tests.support.eager import (
    assert_same,
)
from tests.support.replaying import ReplayingDevice, frozen


def test_a_failed_capture_runs_unfrozen_and_says_why_once() -> None:
    device = ReplayingDevice(fail=True)
    run = frozen(torch.exp, torch.zeros(2), device=device)
    with pytest.warns(
        NimbleWarning, match="runs unfrozen: capture failed: operation not permitted"
    ):
        (first,) = run([torch.ones(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (second,) = run([torch.ones(2)])
    assert torch.equal(first, torch.ones(2).exp())
    assert torch.equal(first, second)
    assert device.n_warm_ups == WARM_UPS  # it is tried once
    assert "operation not permitted" in str(run._status.reason)


def test_a_failed_capture_keeps_no_inputs_alive() -> None:
    run = frozen(torch.exp, torch.zeros(2), device=ReplayingDevice(fail=True))
    x = torch.ones(2)
    alive = weakref.ref(x)
    with pytest.warns(NimbleWarning, match="runs unfrozen"):
        run([x])
    del x
    assert alive() is None


def test_an_error_of_the_program_itself_is_no_fallback(device: ReplayingDevice) -> None:
    def program(x: Tensor, i: Tensor) -> Tensor:
        return x.index_select(0, i)

    x, i = torch.randn(3), torch.zeros(1, dtype=torch.int64)
    run = frozen(program, x, i, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(IndexError):
            run([x, torch.full_like(i, 7)])
        assert_same(list(run([x, i])), [x[:1]])
    assert (device.n_captures, run._status.reason) == (1, None)
