"""Runs of programs are recorded, with inputs and outputs, only while recording is on."""

from collections.abc import Sequence
from typing import Any

import torch

from nimble_fx.frontend.recorded_run import RecordedRun, Recorder


def double(args: list[Any]) -> Sequence[Any]:
    result = [2 * x for x in args]
    args.clear()
    return result


def test_inputs_and_outputs_of_each_run_while_runs_are_recorded() -> None:
    recorder = Recorder()
    run = recorder.watch(double, True)
    assert list(run([1])) == [2]
    assert recorder.runs is None
    recorder.runs = []
    assert list(run([1, 2])) == [2, 4]
    assert list(run([3])) == [6]
    first, second = RecordedRun(double, [1, 2], [2, 4], True), RecordedRun(double, [3], [6], True)
    assert recorder.runs == [first, second]


def test_a_program_without_folded_weights_has_none_to_release() -> None:
    weight = torch.ones(3)
    assert RecordedRun(double, [weight], [], False).release_weights([]) == 0
    assert weight.numel() == 3
