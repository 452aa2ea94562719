"""Only runs of the recorded call are recorded, whatever other threads do."""

from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest

from nimble_fx.frontend.recorded_run import Recorder


def double(args: list[Any]) -> Sequence[Any]:
    result = [2 * x for x in args]
    args.clear()
    return result


def in_thread(call: Any) -> None:
    thread = Thread(target=call)
    thread.start()
    thread.join()


def test_inputs_and_outputs_of_each_run_of_a_recorded_call() -> None:
    recorder = Recorder()
    run = recorder.watch(double)
    run([1])
    result, runs = recorder.recorded(lambda: run(list(run([1, 2]))))
    assert result == [4, 8]
    assert [(each.run, each.inputs, each.outputs) for each in runs] == [
        (double, [1, 2], [2, 4]),
        (double, [2, 4], [4, 8]),
    ]
    run([1])
    assert recorder.recorded(lambda: None) == (None, [])
    assert recorder.n_programs == 1


def test_runs_and_calls_of_other_threads_are_not_recorded() -> None:
    recorder = Recorder()
    run = recorder.watch(double)
    others: list[Any] = []

    def call() -> None:
        in_thread(lambda: run([5]))
        in_thread(lambda: others.append(recorder.recorded(lambda: run([6]))))
        run([7])

    _, runs = recorder.recorded(call)
    assert [each.inputs for each in runs] == [[7]]
    assert others == [([12], [])]


def test_after_an_error_calls_are_recorded_again() -> None:
    recorder = Recorder()
    run = recorder.watch(double)
    with pytest.raises(TypeError):
        recorder.recorded(lambda: [run([1]), run([None])])
    assert [each.inputs for each in recorder.recorded(lambda: run([3]))[1]] == [[3]]
