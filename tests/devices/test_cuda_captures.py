"""The order of streams around programs, warm-ups and captures on CUDA. Needs a GPU."""

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.devices.cuda import POOL_SIZE, Cuda

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Cuda:
    return Cuda.get(torch.device("cuda", 0))


def fill(stream: Any, target: Tensor, value: float) -> None:
    with stream:
        target.fill_(value)


def test_after_a_program_each_stream_comes_after_the_others(cuda: Cuda) -> None:
    streams = cuda.streams(3)
    pairs = list(permutations(range(3), 2))
    for _ in range(20):
        x = torch.zeros(3, 3, 2, device="cuda")
        torch.cuda.synchronize()
        for before, after in pairs:
            fill(streams[before], x[before, after], 1.0)
        cuda.settle(streams, ())
        for before, after in reversed(pairs):
            fill(streams[after], x[before, after], 2.0)
        torch.cuda.synchronize()
        assert all(x[pair].tolist() == [2, 2] for pair in pairs)


@pytest.mark.parametrize(("before", "after"), list(permutations(range(3), 2)))
def test_what_one_stream_did_is_there_for_who_waits_for_another_alone(
    before: int, after: int, cuda: Cuda
) -> None:
    streams: tuple[Any, ...] = cuda.streams(3)
    x = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    fill(streams[before], x, 1.0)
    cuda.settle(streams, ())
    with streams[after]:
        assert x.tolist() == [1, 1]


def test_an_output_may_be_dropped_while_the_caller_reads_it(cuda: Cuda) -> None:
    for _ in range(20):
        with torch.cuda.Stream():
            streams: tuple[Any, ...] = cuda.streams(3)
            outputs: list[Any] = [made(stream, 1.0) for stream in streams[1:]]
            cuda.settle(streams, [7, *outputs])
            read = torch.stack([output.sum() for output in outputs])
            outputs.clear()
            for stream in streams[1:]:
                made(stream, 2.0)
        torch.cuda.synchronize()
        assert read.tolist() == [100, 100]


def made(stream: Any, value: float) -> Tensor:
    """A new tensor of a stream's memory."""
    with stream:
        return torch.full((100,), value, device="cuda")


def test_a_warm_up_comes_after_the_callers_work(cuda: Cuda) -> None:
    pool = cuda.pool()
    for _ in range(20):
        x, seen = torch.zeros(2, 2, device="cuda")
        torch.cuda.synchronize()
        x.fill_(1)

        def run(streams: Sequence[Any], x: Tensor = x, seen: Tensor = seen) -> None:
            with streams[0]:
                seen.copy_(x)

        cuda.warm_up(2, run, pool)
        assert seen.tolist() == [1, 1]


def waits(streams: Sequence[Any]) -> Sequence[Any]:
    """Waits for the device."""
    with streams[0]:
        torch.ones(2, device="cuda").sum().item()
    return ()


def test_an_operator_that_waits_for_the_device_is_an_error_in_a_capture(cuda: Cuda) -> None:
    pool = cuda.pool()
    cuda.warm_up(1, waits, pool)
    with pytest.raises(RuntimeError, match="capturing"):
        cuda.capture(1, waits, pool)
    cuda.warm_up(1, waits, pool)


def test_other_threads_may_wait_for_the_device_at_any_time(cuda: Cuda) -> None:
    errors, is_over = list[Exception](), threading.Event()

    def other() -> None:
        x = torch.ones(2, device="cuda")
        while not is_over.is_set():
            try:
                assert x.sum().item() == 2
            except Exception as error:
                errors.append(error)

    def run(streams: Sequence[Any]) -> Sequence[Any]:
        with streams[0]:
            return [torch.ones(2, device="cuda") + 1]

    thread = threading.Thread(target=other)
    thread.start()
    try:
        pool = cuda.pool()
        for _ in range(20):
            cuda.warm_up(1, run, pool)
            cuda.capture(1, run, pool).replay()
        assert cuda.seconds([lambda: torch.ones(2, device="cuda")]) > 0
    finally:
        is_over.set()
        thread.join()
    assert errors == []


def fork(streams: Sequence[Any]) -> Sequence[Any]:
    """Forks a stream that never joins."""
    event = torch.cuda.Event()
    event.record(streams[0])
    streams[1].wait_event(event)
    with streams[1]:
        torch.zeros(2, device="cuda")
    return ()


def test_a_broken_capture_leaves_the_caller_on_its_stream(cuda: Cuda) -> None:
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="unjoined"):
        cuda.capture(2, fork, cuda.pool())
    assert torch.cuda.current_stream() == stream
    assert (torch.ones(2, device="cuda") + 1).tolist() == [2, 2]


def test_the_pool_of_a_broken_capture_can_be_freed_and_others_be_used(cuda: Cuda) -> None:
    pool, other = cuda.pool(), cuda.pool()
    with pytest.raises(RuntimeError, match="unjoined"):
        cuda.capture(2, fork, pool)
    del pool  # which ends the process if PyTorch takes it to be in use
    gc.collect()
    captured = cuda.capture(1, lambda _: (torch.ones(2, device="cuda"),), other)
    captured.replay()
    assert captured.outputs[0].tolist() == [1, 1]


def test_random_numbers_are_drawn_after_a_broken_capture_as_before(cuda: Cuda) -> None:
    def numbers(between: Callable[[], object]) -> list[float]:
        torch.manual_seed(0)
        first = torch.rand(2, device="cuda").tolist()
        between()
        return first + torch.rand(2, device="cuda").tolist()

    def broken() -> None:
        with pytest.raises(RuntimeError, match="unjoined"):
            cuda.capture(2, fork, cuda.pool())

    assert numbers(broken) == numbers(lambda: None)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_breaks_a_capture_is_what_is_raised(error: type[BaseException], cuda: Cuda) -> None:
    def run(streams: Sequence[Any]) -> Sequence[Any]:
        fork(streams)
        raise error

    with pytest.raises(error):
        cuda.capture(2, run, cuda.pool())


def test_another_thread_may_ask_the_device_during_a_capture(cuda: Cuda) -> None:
    event = torch.cuda.Event()
    event.record()
    torch.cuda.synchronize()

    def run(streams: Sequence[Any]) -> Sequence[Any]:
        return (thread.submit(event.query).result(),)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(torch.cuda.current_stream).result()
        assert cuda.capture(1, run, cuda.pool()).outputs == (True,)


def test_what_asks_the_device_in_a_capture_is_an_error(cuda: Cuda) -> None:
    """A replay would not ask again."""
    event = torch.cuda.Event()
    event.record()
    with pytest.raises(RuntimeError, match="captur"):
        cuda.capture(1, lambda _: (event.query(),), cuda.pool())


def test_memory_is_counted_for_the_stream_that_has_it(cuda: Cuda) -> None:
    def run(streams: Sequence[Any]) -> Sequence[Any]:
        first, _, last = streams
        last.wait_stream(first)
        with last:
            large = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
        first.wait_stream(last)
        return large, torch.empty(1, device="cuda")

    small, none, large = cuda.capture(3, run, cuda.pool()).nbytes
    assert none == 0 < small < 40 << 20 <= large


def test_what_is_timed_begins_on_an_idle_device(cuda: Cuda) -> None:
    event, idle = torch.cuda.Event(), list[bool]()
    with torch.cuda.Stream() as other:
        torch.zeros(2, device="cuda").add_(1)
        event.record(other)
    cuda.time_us(lambda: idle.append(event.query()), 1)
    assert idle == [True]


def test_pytorchs_pool_has_as_many_streams_as_is_said() -> None:
    streams = [torch.cuda.Stream() for _ in range(4 * POOL_SIZE)]
    assert len({stream.cuda_stream for stream in streams}) == POOL_SIZE
