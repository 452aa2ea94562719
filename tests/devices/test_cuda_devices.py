"""A CUDA device that is not the current one. Needs two GPUs."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nimble_fx.devices.cuda import Cuda

pytestmark = pytest.mark.gpu


@pytest.fixture
def second() -> Cuda:
    """A device that is not the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return Cuda.get(torch.device("cuda", 1))


def test_what_is_timed_runs_with_its_device_as_the_current_one(second: Cuda) -> None:
    seen = list[int]()
    second.seconds([lambda: seen.append(torch.cuda.current_device())])
    second.time_us(lambda: seen.append(torch.cuda.current_device()), 1)
    assert set(seen) == {1}
    assert torch.cuda.current_device() == 0


def test_a_capture_on_a_device_that_is_not_current_is_noticed(second: Cuda) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1), torch.cuda.graph(graph), torch.cuda.device(0):
        assert second.is_capturing
    assert not second.is_capturing


def test_a_pool_of_a_device_that_is_not_current_keeps_its_memory_until_it_goes(
    second: Cuda,
) -> None:
    x = torch.randn(64, 64, device="cuda:1")
    before = torch.cuda.memory_reserved(1)
    pool = second.pool()
    second.warm_up(2, lambda streams: x * 2, pool, may_synchronize=True)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(1) > before
    del pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(1) == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_leaves_the_current_device_and_streams(second: Cuda, fails: bool) -> None:
    def run(streams: Sequence[Any]) -> Sequence[Any]:
        if fails:
            raise ZeroDivisionError
        return ()

    streams = [torch.cuda.current_stream(i) for i in range(2)]
    try:
        second.capture(1, run, second.pool())
    except ZeroDivisionError:
        assert fails
    assert torch.cuda.current_device() == 0
    assert [torch.cuda.current_stream(i) for i in range(2)] == streams
