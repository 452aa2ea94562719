"""A CUDA device that is not the current one. Needs two GPUs."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.devices.cuda import Cuda

pytestmark = pytest.mark.gpu


@pytest.fixture
def second() -> Cuda:
    """A device that is not the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return Cuda.get(torch.device("cuda", 1))


def test_what_is_timed_runs_with_its_device_as_the_current_one(
    second: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[int]()

    class Timing(torch.cuda.Event):
        """An event that notes the device whose stream it is recorded on."""

        def record(self, *args: Any, **kwargs: Any) -> None:
            seen.append(torch.cuda.current_device())
            super().record(*args, **kwargs)

    monkeypatch.setattr(torch.cuda, "Event", Timing)
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
    second.warm_up(2, lambda streams: x * 2, pool)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(1) > before
    del pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(1) == before


def test_it_waits_for_the_work_of_its_own_device(second: Cuda) -> None:
    with torch.cuda.device(1):
        event = torch.cuda.Event()
        torch.zeros(4, device="cuda:1").add_(1)
        event.record()
    second.synchronize()
    assert event.query()


def test_its_streams_are_its_own_and_the_first_is_its_current_one(second: Cuda) -> None:
    side = torch.cuda.Stream(1)
    before = second.streams(1)[0]
    with side, torch.cuda.device(0):
        streams: tuple[Any, ...] = second.streams(3)
        assert streams[0] == side != before
        assert [stream.device_index for stream in streams] == [1] * 3
    assert second.streams(1)[0] == before == torch.cuda.current_stream(1)


def test_without_an_index_it_is_whichever_is_current() -> None:
    anyone = Cuda(torch.device("cuda"))
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            assert anyone.streams(1)[0] == torch.cuda.current_stream(index)


def test_a_caller_on_a_stream_of_its_pool_is_not_captured_on_it(second: Cuda) -> None:
    seen = list[Sequence[Any]]()
    caller: Any = second.streams(2)[1]
    with caller, torch.cuda.device(0):
        second.warm_up(1, seen.append, second.pool())
    assert caller not in seen[0]


def test_a_warm_up_comes_after_the_work_of_its_own_device(second: Cuda) -> None:
    pool = second.pool()
    for _ in range(20):
        with torch.cuda.device(1):
            x, seen = torch.zeros(2, 2, device="cuda:1")
            torch.cuda.synchronize()
            x.fill_(1)

        def run(_: Sequence[Any], x: Tensor = x, seen: Tensor = seen) -> None:
            seen.copy_(x)

        second.warm_up(1, run, pool)
        assert seen.tolist() == [1, 1]


def test_the_random_state_of_no_device_is_changed(second: Cuda) -> None:
    torch.rand(3, device="cuda:1")  # so that the two differ

    def draw(*_: object) -> None:
        torch.rand(3, device="cuda:1")

    before = torch.cuda.get_rng_state_all()
    second.warm_up(1, draw, second.pool())
    second.time_us(draw, 2)
    assert all(map(torch.equal, torch.cuda.get_rng_state_all(), before))


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
