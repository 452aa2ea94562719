"""Legal schedules compute correct results on the virtual device, and illegal ones do not."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.errors import OptionError, UnsupportedError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.tracing.aten_to_tasks import Traced
from tests.support.bits import assert_same_bits
from tests.support.eager import assert_inference_is_eagers, assert_training_is_eagers
from tests.support.models import CASES, Branchy
from tests.support.playing import Play, first_wrong_order, on_cpu
from tests.support.schedules import scheduled, traced
from tests.support.threads import assert_threads_do_not_mix

VIRTUAL: dict[str, Any] = {"device": "virtual"}
UNFROZEN: dict[str, Any] = VIRTUAL | {"policy": "nimble", "freeze": False}
"""With streams, which the default policy does not use where each launch is a call of the host."""


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_inference_is_eagers(name: str, freeze: bool) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        options = VIRTUAL | {"policy": "nimble", "freeze": freeze, "seed": 3}
        assert_inference_is_eagers(CASES[name], options, n_calls=4)
    programs = [p for p in nimble_fx.programs() if p.graph.launching]
    assert {p.device for p in programs} == {"virtual (seed 3)"}
    assert all(bool(p.status.n_captures) == freeze for p in programs)


@pytest.mark.parametrize("name", ["googlenet", "transformer_dropout", "tables"])
def test_training_is_eagers(name: str) -> None:
    assert_training_is_eagers(CASES[name], options=VIRTUAL)
    assert all(p.status.n_captures for p in nimble_fx.programs())


def two_branches(x: Tensor) -> Tensor:
    """relu and sigmoid side by side; the memory of what they read is used again."""
    y = x + 1
    left, right = torch.relu(y * 2) * 3, torch.sigmoid(y * 4) * 5
    return left + right


def branches() -> tuple[Traced, TaskGraph, list[Tensor], list[Any]]:
    x = torch.randn(4, 4)
    result = traced(two_branches, x)
    graph = scheduled(result.graph)
    return result, graph, [x], on_cpu(graph, result.constants, [x])


def without_wait(graph: TaskGraph) -> TaskGraph:
    waiting = next(task for task in graph.tasks if task.waits)
    tasks = [t.updated(waits=()) if t is waiting else t for t in graph.tasks]
    return replace(graph, tasks=tuple(tasks))


def freed_early(graph: TaskGraph, name: str, after: str) -> TaskGraph:
    """`name` is dropped after the task `after`."""
    tasks = []
    for task in graph.tasks:
        frees = tuple(n for n in task.frees if n != name)
        frees += (name,) if task.name == after else ()
        tasks.append(task.updated(frees=frees))
    return replace(graph, tasks=tuple(tasks))


def test_a_legal_schedule_gives_the_same_bits_in_every_order() -> None:
    result, graph, inputs, expected = branches()
    play = Play(graph, result.constants, inputs)
    for _ in range(200):
        assert_same_bits(play.replay(), expected[1:])


def test_a_deleted_wait_shows_as_a_wrong_result() -> None:
    result, graph, inputs, expected = branches()
    assert first_wrong_order(without_wait(graph), result.constants, inputs, expected)


def test_what_a_replay_left_behind_is_not_taken_for_a_result() -> None:
    result, graph, inputs, left = branches()
    play = Play(without_wait(graph), result.constants, inputs)
    right = [torch.equal(play.replay()[0], left[1]) for _ in range(100)]
    first = right.index(True)
    assert not all(right[first:])


def test_a_value_that_is_freed_too_early_shows_as_a_wrong_result() -> None:
    result, graph, inputs, expected = branches()
    add = graph.by_name["add"]
    reader = next(t for t in graph.tasks if "add" in t.uses and t.stream != add.stream)
    early = freed_early(graph, "add", after=reader.name)
    assert early != graph
    assert first_wrong_order(early, result.constants, inputs, expected, n_orders=90)


def test_the_seed_decides_what_an_illegal_schedule_gives() -> None:
    result, graph, inputs, expected = branches()
    broken = without_wait(graph)

    def outcome(seed: int) -> list[bool]:
        play = Play(broken, result.constants, inputs, seed)
        return [torch.equal(play.replay()[0], expected[1]) for _ in range(20)]

    assert outcome(5) == outcome(5)
    assert len({tuple(outcome(seed)) for seed in range(5)}) > 1


def capture(device: Virtual, *steps: Any) -> None:
    """Captures three streams; each step is (method, stream, event)."""
    events = device.events(("a", "b"))

    def run(streams: tuple[Any, ...]) -> Sequence[Any]:
        for method, stream, name in steps:
            event = getattr(events, name, None)
            if method == "record":
                event.record(streams[stream])  # type: ignore[union-attr]
            elif method == "wait":
                streams[stream].wait_event(event)
            else:
                with streams[stream]:
                    torch.ones(2)
        return ()

    device.capture(3, run, device.pool())


def test_a_capture_of_a_fork_and_its_join_is_sound() -> None:
    device = Virtual()
    capture(
        device,
        *[("record", 0, "a"), ("wait", 1, "a"), ("launch", 1, "")],
        *[("record", 1, "b"), ("wait", 0, "b")],
    )
    assert not device.is_capturing


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("launch", 1, "")], "used in a capture before it waits for an event of it"),
        ([("record", 0, "a"), ("wait", 1, "a"), ("launch", 1, "")], "unjoined work on streams"),
        ([("record", 1, "a"), ("wait", 0, "a")], "used in a capture before"),
        ([("wait", 1, "a"), ("launch", 1, "")], "used in a capture before"),
    ],
)
def test_a_capture_that_cuda_would_refuse_is_refused(
    steps: list[tuple[str, int, str]], message: str
) -> None:
    device = Virtual()
    with pytest.raises(RuntimeError, match=message):
        capture(device, *steps)
    assert not device.is_capturing
    capture(device, ("launch", 0, ""))


def test_events_do_not_cross_the_border_of_a_capture() -> None:
    device = Virtual()
    caller, (event,) = device.streams(1)[0], [device.events(("a",)).a]

    def waits(streams: tuple[Any, ...]) -> Sequence[Any]:
        streams[0].wait_event(event)
        return ()

    def records(streams: tuple[Any, ...]) -> Sequence[Any]:
        event.record(streams[0])
        return ()

    event.record(caller)
    with pytest.raises(RuntimeError, match="the other side of a capture"):
        device.capture(1, waits, device.pool())
    device.capture(1, records, device.pool())
    with pytest.raises(RuntimeError, match="the other side of a capture"):
        caller.wait_event(event)


def test_captures_do_not_nest() -> None:
    device = Virtual()
    pool = device.pool()
    with pytest.raises(RuntimeError, match="do not nest"):
        device.capture(1, lambda _: device.capture(1, lambda _: (), pool).outputs, pool)


def test_the_memory_of_a_capture_is_its_own_and_each_replay_writes_it_anew() -> None:
    device, x = Virtual(), torch.zeros(3)

    def run(streams: tuple[Any, ...]) -> list[Tensor]:
        with streams[0]:
            return [torch.exp(x)]

    one, other = device.capture(1, run, device.pool()), device.capture(1, run, device.pool())
    (first,), (second,) = one.outputs, other.outputs
    assert first.isnan().all()
    one.replay()
    other.replay()
    x.fill_(1)
    other.replay()
    assert_same_bits((first, second), (torch.ones(3), torch.ones(3).exp()))


def test_random_numbers_are_those_of_a_run_without_capture() -> None:
    device = Virtual()

    def run(streams: tuple[Any, ...]) -> list[Tensor]:
        with streams[0]:
            return [torch.rand(3)]

    torch.manual_seed(0)
    device.warm_up(1, run, device.pool())
    drawn = device.capture(1, run, device.pool())
    drawn.replay()
    torch.manual_seed(0)
    assert torch.equal(drawn.outputs[0], torch.rand(3))


def test_streams_are_distinct_and_begin_with_the_callers() -> None:
    device = Virtual()
    streams = device.streams(3)
    assert len(set(streams)) == 3
    assert device.streams(3) == streams
    with streams[1] as caller:
        inside = device.streams(3)
    assert inside[0] is caller
    assert len(set(inside)) == 3


def test_each_thread_has_a_current_stream_of_its_own() -> None:
    device = Virtual()
    with device.streams(2)[1], ThreadPoolExecutor(1) as thread:
        seen = thread.submit(device.streams, 1).result()
    assert seen == (device.streams(1))


def test_memory_that_the_caller_keeps_is_left_alone() -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble", options=UNFROZEN)
    with torch.no_grad():
        inputs = [torch.randn(2, 4) for _ in range(8)]
        kept = [(compiled(x), model(x)) for x in inputs]
    for ours, expected in kept:
        assert_same_bits(ours, expected)


def test_threads_that_call_one_program_do_not_mix_their_inputs() -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble", options=UNFROZEN)
    inputs = [torch.full((2, 4), float(i)) for i in range(4)]
    with torch.no_grad():
        compiled(inputs[0])
    assert_threads_do_not_mix(compiled, model, inputs, n_calls=10)


def test_within_a_stream_a_replay_is_one_of_its_kernels() -> None:
    device, x = Virtual(), torch.zeros(3)

    def run(streams: tuple[Any, ...]) -> list[Tensor]:
        with streams[0]:
            return [x + torch.rand(3)]

    one: Any = device.capture(1, run, device.pool())
    stream: Any = device.streams(2)[1]
    torch.manual_seed(0)
    with stream:
        results = []
        for value in (1.0, 2.0):
            x.fill_(value)
            one.replay()
            results.append(one.outputs[0].clone())
        x.fill_(9.0)
    assert torch.equal(x, torch.zeros(3))
    device.synchronize()
    torch.manual_seed(0)
    assert_same_bits(results, [1 + torch.rand(3), 2 + torch.rand(3)])


def test_a_capture_in_which_the_host_waited_is_unsound() -> None:
    device = Virtual()

    def run(streams: tuple[Any, ...]) -> list[Tensor]:
        with suppress(RuntimeError):
            device.synchronize()
        return []

    with pytest.raises(RuntimeError, match="previous error during capture"):
        device.capture(1, run, device.pool())


def test_kernels_of_a_warm_up_that_fails_never_run() -> None:
    device, x = Virtual(0), torch.zeros(3)

    def run(streams: Sequence[Any]) -> None:
        with streams[0]:
            x.add_(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        device.warm_up(1, run, device.pool())
    device.synchronize()
    assert torch.equal(x, torch.zeros(3))


def test_there_is_no_capture_to_end_before_one_begins() -> None:
    with pytest.raises(RuntimeError, match="no capture is under way"):
        Virtual().end_capture()


def test_it_is_for_models_on_the_cpu() -> None:
    compiled = torch.compile(nn.ReLU(), backend="nimble", options=VIRTUAL)
    with pytest.raises(OptionError, match="for models on the CPU"):
        compiled(torch.empty(2, device="meta"))


def test_a_copy_of_the_model_on_another_seed_gives_the_same() -> None:
    model, x = Branchy(), torch.randn(2, 4)
    with torch.no_grad():
        results = []
        for seed in range(4):
            torch.compiler.reset()
            options = VIRTUAL | {"seed": seed}
            compiled = torch.compile(copy.deepcopy(model), backend="nimble", options=options)
            results.append(compiled(x))
        assert all(torch.equal(result, model(x)) for result in results)


def test_it_has_no_time() -> None:
    with pytest.raises(UnsupportedError, match="not time"):
        Virtual().seconds([lambda: None])
