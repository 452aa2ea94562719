"""The CUDA device on a deterministic stand-in for `torch.cuda`, without a GPU."""

import gc
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from math import ceil
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.devices import Capture, cuda
from nimble_fx.devices.cuda import MAX_STREAMS, N_REPEATS, N_SAMPLES, POOL_SIZE, Cuda
from nimble_fx.devices.specs import DEVICES
from nimble_fx.errors import NimbleWarning
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from nimble_fx.runtime.launch import Launcher
from tests.support import cuda_stand_in
from tests.support.bits import assert_same_bits
from tests.support.cuda_stand_in import Gpu, Stream, current_stream
from tests.support.models import CASES, Branchy, GoogLeNet


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Programs run on a CUDA device that is made of stand-ins, and leave it as it was."""
    gpu = cuda_stand_in.install(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NimbleWarning)
        yield gpu
    assert gpu.current == 0
    assert not gpu.is_capturing


def test_a_program_runs_on_as_many_distinct_streams_as_it_wants(gpu: Gpu) -> None:
    streams: tuple[Any, ...] = gpu.cuda.streams(POOL_SIZE)
    assert streams[0] == current_stream()
    assert len({stream.cuda_stream for stream in streams}) == POOL_SIZE
    assert gpu.cuda.streams(3)[1:] == streams[1:3]
    assert gpu.cuda.streams(0) == gpu.cuda.streams(1) == (current_stream(),)


def test_only_the_streams_that_are_needed_are_created_and_none_goes_first(gpu: Gpu) -> None:
    streams: tuple[Any, ...] = gpu.cuda.streams(4)
    assert [stream.priority for stream in streams] == [0] * 4
    assert next(gpu.next_stream[0]) == 3


def test_replays_that_share_random_state_run_one_after_another(gpu: Gpu) -> None:
    done: list[int] = []

    class Graph:
        def __init__(self, number: int) -> None:
            self.number = number

        def replay(self) -> None:
            assert gpu.cuda.exclusive().is_held_here
            for _ in range(2):
                gpu.launch(partial(done.append, self.number))

    streams: tuple[Any, ...] = gpu.cuda.streams(3)[1:]
    for number in range(12):
        with streams[number % 2]:
            gpu.cuda._replay(cast(Any, Graph(number)))
    gpu.synchronize()
    assert done == [number for number in range(12) for _ in range(2)]


def test_the_callers_stream_is_no_side_stream_of_its_own_program(gpu: Gpu) -> None:
    pool = gpu.cuda.streams(POOL_SIZE)[1:]
    with pool[0] as caller:
        streams = gpu.cuda.streams(POOL_SIZE)
    assert streams[0] == caller
    assert caller not in streams[1:]
    assert len(set(streams)) == POOL_SIZE


@pytest.mark.parametrize("urgent", [None, 0, 2])
def test_the_urgent_stream_alone_is_captured_at_high_priority(urgent: int | None, gpu: Gpu) -> None:
    seen = list[tuple[Any, ...]]()
    pool = gpu.cuda.pool()
    gpu.cuda.warm_up(3, seen.append, pool, urgent=urgent)
    gpu.cuda.capture(3, lambda streams: seen.append(streams) or (), pool, urgent=urgent)  # type: ignore[func-returns-value]
    warmed, captured = seen
    assert warmed == captured
    assert len(set(captured)) == 3
    assert [stream.priority for stream in captured] == [-(i == urgent) for i in range(3)]


def test_what_is_launched_on_no_stream_in_particular_is_on_the_first_of_a_capture(gpu: Gpu) -> None:
    seen = list[tuple[Any, Any]]()

    def run(streams: tuple[Any, ...]) -> tuple[()]:
        seen.append((current_stream(), streams[0]))
        return ()

    pool = gpu.cuda.pool()
    gpu.cuda.warm_up(2, run, pool)
    gpu.cuda.capture(2, run, pool)
    assert len(seen) == 2
    assert all(current == first for current, first in seen)


@pytest.mark.parametrize(("policy", "n_urgent"), [("critical-path", 1), ("nimble", 0)])
def test_a_program_is_warmed_up_and_captured_with_its_urgent_stream_at_high_priority(
    policy: str, n_urgent: int, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[Any, ...]]()
    enqueue = Launcher.enqueue

    def noting(launcher: Launcher, given: Any, static: Any, streams: Any) -> Any:
        seen.append(streams)
        return enqueue(launcher, given, static, streams)

    monkeypatch.setattr(Launcher, "enqueue", noting)
    with torch.no_grad():
        model, x = GoogLeNet().eval(), torch.randn(1, 3, 16, 16)
        compiled = torch.compile(model, backend="nimble", options={"policy": policy})
        assert torch.equal(compiled(x), model(x))
    (program,) = nimble_fx.programs()
    assert len(seen) == WARM_UPS + 1
    assert len(set(seen)) == 1
    urgent = [i for i, stream in enumerate(seen[0]) if stream.priority == -1]
    assert urgent == [program.graph.urgent][:n_urgent]


def test_a_caller_on_a_stream_of_the_pool_leaves_enough_for_a_capture(gpu: Gpu) -> None:
    seen = list[tuple[Any, ...]]()
    with gpu.cuda.streams(2)[1]:
        for urgent in (None, 0, MAX_STREAMS - 1):
            gpu.cuda.warm_up(MAX_STREAMS, seen.append, gpu.cuda.pool(), urgent=urgent)
    assert [len(set(streams)) for streams in seen] == [MAX_STREAMS] * 3


def test_a_caller_on_a_stream_of_the_pool_is_not_captured_on_it(gpu: Gpu) -> None:
    seen = list[tuple[Any, ...]]()
    with gpu.cuda.streams(2)[1] as caller:
        gpu.cuda.warm_up(1, seen.append, gpu.cuda.pool())
    assert caller not in seen[0]


def test_a_caller_on_a_stream_of_high_priority_is_not_captured_on_it(gpu: Gpu) -> None:
    seen = list[tuple[Any, ...]]()

    def run(streams: tuple[Any, ...]) -> tuple[()]:
        seen.append(streams)
        return ()

    gpu.cuda.capture(1, run, gpu.cuda.pool(), urgent=0)
    with seen[0][0] as caller:
        gpu.cuda.capture(1, run, gpu.cuda.pool(), urgent=0)
    assert caller == seen[0][0] != seen[1][0]
    assert seen[1][0].priority == -1


def test_streams_are_joined_after_an_exception_too(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"freeze": False, "policy": "nimble"}
    compiled = torch.compile(CASES["branchy"].model(), backend="nimble", options=options)
    settled: list[object] = []
    with torch.no_grad():
        compiled(torch.randn(2, 4))
        monkeypatch.setattr(gpu.cuda, "settle", lambda *args: settled.append(args))
        monkeypatch.setattr(Stream, "wait_event", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compiled(torch.randn(2, 4))
    assert len(settled) == 1


def test_nothing_outlives_a_capture_of_the_users(gpu: Gpu) -> None:
    streams = gpu.cuda.streams(2)
    with cuda_stand_in.Graph(cuda_stand_in.CUDAGraph(), stream=Stream()):
        gpu.cuda.settle(streams, ())
        assert gpu.cuda.is_capturing


def test_a_program_on_one_stream_records_it_on_no_output(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = list[object]()
    monkeypatch.setattr(Tensor, "record_stream", lambda *arguments: recorded.append(arguments))
    gpu.cuda.settle(gpu.cuda.streams(1), [torch.ones(2)])
    assert recorded == []


def test_a_capture_that_breaks_keeps_no_memory_until_garbage_is_collected(gpu: Gpu) -> None:
    seen = list[weakref.ref[Tensor]]()

    def run(streams: Sequence[Any]) -> Sequence[Any]:
        x = torch.zeros(2)
        seen.append(weakref.ref(x))
        raise ZeroDivisionError

    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            gpu.cuda.capture(2, run, gpu.cuda.pool())
        assert seen[0]() is None
    finally:
        gc.enable()


def test_garbage_is_gone_before_a_programs_captures(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Garbage:
        """It refers to itself."""

    garbage: Any = Garbage()
    garbage.itself, alive, gone = garbage, weakref.ref(garbage), list[bool]()
    del garbage
    capture = Cuda.capture

    def noting(*args: Any, **kwargs: Any) -> Any:
        gone.append(alive() is None)
        return capture(*args, **kwargs)

    monkeypatch.setattr(Cuda, "capture", noting)
    gc.disable()
    try:
        with torch.no_grad():
            torch.compile(Branchy(), backend="nimble")(torch.randn(8, 4))
    finally:
        gc.enable()
    assert len(gone) > 1
    assert all(gone)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_warm_up_that_fails_leaves_no_trace(error: type[BaseException], gpu: Gpu) -> None:
    def run(streams: Sequence[Any]) -> None:
        with streams[0]:
            torch.rand(3) @ torch.rand(3, 3)
        raise error

    before, pool = torch.get_rng_state(), gpu.cuda.pool()
    memory = weakref.ref(pool.pool)
    with pytest.raises(error):
        gpu.cuda.warm_up(1, run, pool)
    assert torch.equal(torch.get_rng_state(), before)
    assert (gpu.current, gpu.workspaces) == (0, {})
    del pool
    gc.collect()
    assert memory() is None


def multiplied(gpu: Gpu, x: Tensor) -> Capture:
    """A capture of a matrix product."""

    def run(streams: Sequence[Any]) -> list[Tensor]:
        with streams[0]:
            return [x @ x]

    pool = gpu.cuda.pool()
    gpu.cuda.warm_up(1, run, pool)
    return gpu.cuda.capture(1, run, pool)


def test_a_capture_shares_no_workspace_with_what_runs_before_or_after_it(gpu: Gpu) -> None:
    x = torch.randn(3, 3)
    (stream,) = gpu.cuda._capture_streams(1, None)
    multiplied(gpu, x)
    assert gpu.workspaces == {}
    with stream:
        x @ x
    gpu.synchronize()

    def run(streams: Sequence[Any]) -> list[Tensor]:
        with streams[0]:
            return [x @ x]

    captured = gpu.cuda.capture(1, run, gpu.cuda.pool())
    assert captured.nbytes[0] >= cuda_stand_in.WORKSPACE_NBYTES + x.nbytes


def second_of_two(gpu: Gpu, x: Tensor) -> Capture:
    """Captures two graphs on one stream, drops the first; the second, which squares `x`."""
    first = multiplied(gpu, torch.eye(3))
    second = multiplied(gpu, x)
    assert first.nbytes[0] >= cuda_stand_in.WORKSPACE_NBYTES + x.nbytes
    return second


def test_a_graph_replays_once_another_of_its_stream_is_dropped(gpu: Gpu) -> None:
    x = torch.randn(3, 3)
    second = second_of_two(gpu, x)
    second.replay()
    assert_same_bits(list(second.outputs), [x @ x])


def test_with_one_workspace_for_both_it_would_not(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_fresh_workspaces", nullcontext)
    second = second_of_two(gpu, torch.randn(3, 3))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        second.replay()


def test_the_memory_of_a_capture_is_gone_with_it(gpu: Gpu) -> None:
    capture = multiplied(gpu, torch.eye(3))
    memory = weakref.ref(capture.pool.pool)
    assert memory() is not None
    del capture
    assert memory() is None


def test_other_allocators_cannot_capture(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.cuda.why_not_capture is None
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert "cudaMallocAsync" in str(gpu.cuda.why_not_capture)


def test_a_device_is_there_if_there_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert Cuda(torch.device("cuda", 0)).hardware == "GPU 0"
    assert Cuda(torch.device("cuda", 1)).hardware is None


def test_its_specifications_are_those_of_its_own_model_and_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a100 = DEVICES["a100"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device=None: SimpleNamespace(multi_processor_count=a100.sms // (device.index + 1)),
    )
    whole, half = (Cuda(torch.device("cuda", i)).specs for i in range(2))
    assert (whole.sms, whole.gbps) == (a100.sms, a100.gbps)
    assert (half.sms, half.gbps) == (a100.sms // 2, a100.gbps / 2)


def test_a_pytorch_that_cannot_limit_workspaces_is_left_alone(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.backends.cuda, "cublas_workspace_size")
    with gpu.cuda.limited_workspaces(1):
        assert not hasattr(torch.backends.cuda, "cublas_workspace_size")


def test_all_programs_of_a_device_share_its_streams(gpu: Gpu) -> None:
    one = Cuda.get(torch.device("cuda", 7))
    assert one is Cuda.get(torch.device("cuda", 7))
    assert one.exclusive() is gpu.cuda.exclusive()


@pytest.mark.parametrize("n_calls", [1, 3, 70])
def test_a_call_takes_its_part_of_a_replay(n_calls: int, gpu: Gpu) -> None:
    xs = [torch.ones(2) for _ in range(n_calls)]
    gpu.replay_ms = partial(float, 100)
    seconds = gpu.cuda.seconds([partial(torch.Tensor.add_, x, 1) for x in xs])
    n_repeats = ceil(N_REPEATS / n_calls)
    assert seconds == pytest.approx(0.1 / (n_repeats * n_calls))
    gpu.synchronize()
    n_replays = gpu.n_replays
    assert n_replays == 1 + N_SAMPLES
    expected = 1 + 1 + n_replays * n_repeats  # what it was, the warm-up, the replays
    assert_same_bits(xs, [torch.full((2,), float(expected))] * n_calls)


def test_the_median_sample_is_a_calls_time(gpu: Gpu) -> None:
    gpu.replay_ms = partial(next, iter([5.0, 100.0, 1.0]))
    assert gpu.cuda.seconds([lambda: torch.ones(2)]) == pytest.approx(5e-3 / N_REPEATS)


def test_a_replay_takes_its_part_of_several(gpu: Gpu) -> None:
    captured = gpu.cuda.capture(1, lambda _: (), gpu.cuda.pool())
    gpu.replay_ms = partial(float, 100)
    assert gpu.cuda.time_us(captured.replay, 3) == pytest.approx(100e3)
    assert gpu.n_replays == 3


def test_calls_are_timed_while_no_other_thread_captures(gpu: Gpu) -> None:
    held = list[bool]()
    gpu.cuda.seconds([lambda: held.append(gpu.cuda.exclusive().is_held_here)])
    assert all(held)


def test_a_replay_that_is_timed_draws_no_random_numbers_of_the_users(gpu: Gpu) -> None:
    before = torch.get_rng_state()
    gpu.cuda.time_us(lambda: torch.rand(3), 2)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)
