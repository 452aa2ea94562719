"""A program with folded weights is called like one with the original weights."""

from typing import Any

import pytest
import torch

from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.runtime.folding.folded_run import FoldedRun
from nimble_fx.runtime.folding.folded_weights import FoldedWeights
from tests.support.doubling import Doubling, doubled


def unexpected() -> None:
    raise AssertionError("runs unfolded")


def test_a_program_takes_what_it_keeps_and_then_the_folded_weights() -> None:
    run = FoldedRun(list, doubled(2), [0, 2], [1, 2], unfolded=list, report_unfolded=unexpected)
    weight, x, both, arguments = torch.ones(1), torch.zeros(1), torch.full((1,), 3.0), list[Any]()
    arguments += [weight, x, both]
    assert [value.item() for value in run(arguments)] == [0, 3, 2, 6]
    assert arguments == []


def test_a_capture_of_the_users_runs_unfolded_unless_the_weights_are_gone() -> None:
    device, weight, x = Virtual(), torch.ones(1), torch.zeros(1)
    folded = FoldedWeights(Doubling(), [None], device=device, names=["weight"])
    run = FoldedRun(list, folded, [0], [1], unfolded=list, report_unfolded=unexpected)
    assert [value.item() for value in run([weight, x])] == [0, 2]
    device.begin_capture(device.streams(1)[0], device.pool())  # type: ignore[arg-type]
    assert [value.item() for value in run([weight, x])] == [1, 0]
    device.end_capture()
    run.release_weights([weight, x], [])
    device.begin_capture(device.streams(1)[0], device.pool())  # type: ignore[arg-type]
    assert [value.item() for value in run([weight, x])] == [0, 2]
    device.end_capture()


@pytest.mark.parametrize("may_stay_unfolded", [True, False])
def test_weights_that_change_in_each_call_are_read_unfolded_where_that_is_allowed(
    may_stay_unfolded: bool,
) -> None:
    run = FoldedRun(
        list, doubled(1), [0], [1], list, unexpected, may_stay_unfolded=may_stay_unfolded
    )
    weight, x = torch.ones(1), torch.zeros(1)
    for _ in range(10):
        weight.add_(1)
        results = [value.item() for value in run([weight, x])]
    unfolded, folded = [weight.item(), 0], [0, 2 * weight.item()]
    assert results == (unfolded if may_stay_unfolded else folded)


def test_a_program_of_inference_tensors_runs_unfolded_and_says_so() -> None:
    reports = []
    run = FoldedRun(
        list, doubled(1), [0], [1], unfolded=list, report_unfolded=lambda: reports.append(1)
    )
    with torch.inference_mode():
        weight, x = torch.ones(1), torch.zeros(1)
    for n_calls in (1, 2):
        assert [value.item() for value in run([weight, x])] == [1, 0]
        assert len(reports) == n_calls
    assert [value.item() for value in run([weight.clone(), x])] == [0, 2]
    assert len(reports) == 2
