"""Runs of programs are recorded, with inputs and outputs, only while recording is on."""

from collections.abc import Sequence
from threading import Thread
from typing import Any

import torch

from nimble_fx.frontend.recorded_run import RecordedRun, Recorder


def double(args: list[Any]) -> Sequence[Any]:
    result = [2 * x for x in args]
    args.clear()
    return result


FIRST = RecordedRun(double, [1, 2], [2, 4], True)
SECOND = RecordedRun(double, [3], [6], True)


def test_inputs_and_outputs_of_each_run_while_runs_are_recorded() -> None:
    recorder = Recorder()
    run = recorder.watch(double, True)
    assert list(run([1])) == [2]
    with recorder.recording() as runs:
        assert list(run([1, 2])) == [2, 4]
        with recorder.recording() as inner:
            assert list(run([3])) == [6]
    assert list(run([5])) == [10]
    assert (runs, inner) == ([FIRST, SECOND], [SECOND])


def test_a_program_may_return_what_it_should_instead_of_running() -> None:
    recorder = Recorder()
    run = recorder.watch(double, True)
    with recorder.recording() as runs:
        with recorder.recording([7]) as inner:
            assert list(run([3])) == [7]
        assert list(run([3])) == [6]
    assert (runs, inner) == ([SECOND], [RecordedRun(double, [3], [7], True)])


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
    assert RecordedRun(double, [weight], [], False).release_weights([]) == 0
    assert weight.numel() == 3
