"""The order of streams around programs, warm-ups and captures on CUDA. Needs a GPU."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.devices.cuda import Cuda

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


def test_a_warm_up_comes_after_the_callers_work(cuda: Cuda) -> None:
    pool = cuda.pool()
    for _ in range(20):
        x, seen = torch.zeros(2, 2, device="cuda")
        torch.cuda.synchronize()
        x.fill_(1)

        def run(streams: Sequence[Any], x: Tensor = x, seen: Tensor = seen) -> None:
            with streams[0]:
                seen.copy_(x)

        cuda.warm_up(2, run, pool, may_synchronize=True)
        assert seen.tolist() == [1, 1]


def test_an_operator_that_waits_for_the_device_is_an_error_where_it_may_not(cuda: Cuda) -> None:
    def run(streams: Sequence[Any]) -> None:
        with streams[0]:
            torch.ones(2, device="cuda").sum().item()

    pool = cuda.pool()
    cuda.warm_up(1, run, pool, may_synchronize=True)
    with pytest.raises(RuntimeError, match="synchronizing"):
        cuda.warm_up(1, run, pool, may_synchronize=False)
    cuda.warm_up(1, run, pool, may_synchronize=True)


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


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_breaks_a_capture_is_what_is_raised(error: type[BaseException], cuda: Cuda) -> None:
    def run(streams: Sequence[Any]) -> Sequence[Any]:
        fork(streams)
        raise error

    with pytest.raises(error):
        cuda.capture(2, run, cuda.pool())
