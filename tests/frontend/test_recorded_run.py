"""Runs of programs are recorded, with inputs and outputs, only while recording is on."""

from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
import torch

from nimble_fx.frontend.recorded_run import RecordedRun, Recorder


def double(args: list[Any]) -> Sequence[Any]:
    result = [2 * x for x in args]
    args.clear()
    return result


FIRST, SECOND = RecordedRun(double, [1, 2], [2, 4]), RecordedRun(double, [3], [6])


def test_inputs_and_outputs_of_each_run_while_runs_are_recorded() -> None:
    recorder = Recorder()
    run = recorder.watch(double, True)
    assert list(run([1])) == [2]
    with recorder.recording() as runs:
        assert list(run([1, 2])) == [2, 4]
        assert list(run([3])) == [6]
    assert list(run([5])) == [10]
    assert runs == [FIRST, SECOND]


def test_a_probed_program_does_not_run_and_returns_as_many_tensors_as_before() -> None:
    recorder, args = Recorder(), [5]
    run = recorder.watch(double, False)
    run([1, 2])
    with recorder.recording() as runs, recorder.probing() as probes:
        outputs = run(args)
    assert [type(each) for each in outputs] == [torch.Tensor, torch.Tensor]
    assert (runs, args) == ([], [5])
    assert probes == [RecordedRun(double, [5], outputs)]
    assert list(run([3])) == [6]


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_program_that_never_ran_or_of_which_a_call_does_more_cannot_be_probed(
    is_wrapped: bool,
) -> None:
    recorder = Recorder()
    run = recorder.watch(double, is_wrapped)
    if is_wrapped:
        run([1])
    with recorder.probing() as probes, pytest.raises(TypeError):
        run([1])
    assert probes == []


def test_threads_record_their_own_runs() -> None:
    recorder = Recorder()
    run = recorder.watch(double, True)
    with recorder.recording() as runs:
        thread = Thread(target=run, args=([1, 2],))
        thread.start()
        thread.join()
        run([3])
    assert runs == [SECOND]


def test_a_program_without_folded_weights_has_none_to_release() -> None:
    weight = torch.ones(3)
    assert RecordedRun(double, [weight], []).release_weights([]) == 0
    assert weight.numel() == 3
