"""Which streams programs, warm-ups and captures on CUDA run on. Needs a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.devices.cuda import MAX_STREAMS, POOL_SIZE, Cuda
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from nimble_fx.runtime.launch import Launcher
from tests.support.models import Branchy, GoogLeNet

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    """The device; the current stream is the same after a test as before."""
    before = torch.cuda.current_stream()
    yield Cuda.get(torch.device("cuda", 0))
    assert torch.cuda.current_stream() == before
    assert not torch.cuda.is_current_stream_capturing()


class Seen(list[tuple[Any, ...]]):
    """The streams of each warm-up and capture."""

    def __call__(self, streams: tuple[Any, ...]) -> tuple[()]:
        self.append(streams)
        return ()


@contextmanager
def on_stream_of_pool(cuda: Cuda) -> Iterator[Any]:
    """Makes a side stream of programs the caller's."""
    stream: Any = cuda.streams(2)[1]
    with torch.cuda.stream(stream):
        yield stream


def test_streams_are_distinct_and_shared_and_the_first_is_the_current_one(cuda: Cuda) -> None:
    streams: tuple[Any, ...] = cuda.streams(POOL_SIZE)
    assert streams[0] == torch.cuda.current_stream()
    assert len({stream.cuda_stream for stream in streams}) == POOL_SIZE
    assert {stream.priority for stream in streams} == {0}
    assert cuda.streams(3)[1:] == streams[1:3]
    assert cuda.streams(0) == cuda.streams(1) == (torch.cuda.current_stream(),)


def test_the_callers_stream_is_no_side_stream_of_its_own_program(cuda: Cuda) -> None:
    with on_stream_of_pool(cuda) as caller:
        streams = cuda.streams(POOL_SIZE)
    assert streams[0] == caller
    assert len(set(streams)) == POOL_SIZE


@pytest.mark.parametrize("urgent", [None, 0, 2])
def test_the_urgent_stream_alone_is_captured_at_high_priority(
    urgent: int | None, cuda: Cuda
) -> None:
    seen, pool = Seen(), cuda.pool()
    cuda.warm_up(3, seen, pool, urgent=urgent)
    cuda.capture(3, seen, pool, urgent=urgent)
    warmed, captured = seen
    assert warmed == captured
    assert len(set(captured)) == 3
    assert [stream.priority < 0 for stream in captured] == [i == urgent for i in range(3)]


def test_what_is_launched_on_no_stream_in_particular_is_on_the_first_of_a_capture(
    cuda: Cuda,
) -> None:
    seen, pool = list[bool](), cuda.pool()

    def run(streams: tuple[Any, ...]) -> tuple[()]:
        seen.append(torch.cuda.current_stream() == streams[0])
        return ()

    cuda.warm_up(2, run, pool)
    cuda.capture(2, run, pool)
    assert seen == [True, True]


@pytest.mark.parametrize(("policy", "n_urgent"), [("critical-path", 1), ("nimble", 0)])
def test_a_program_is_warmed_up_and_captured_with_its_urgent_stream_at_high_priority(
    policy: str, n_urgent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    enqueue = Launcher.enqueue

    def noting(launcher: Launcher, inputs: Any, static: Any, streams: Any) -> Any:
        seen(streams)
        return enqueue(launcher, inputs, static, streams)

    monkeypatch.setattr(Launcher, "enqueue", noting)
    model, x = GoogLeNet().eval().cuda(), torch.randn(1, 3, 16, 16, device="cuda")
    with torch.no_grad():
        torch.compile(model, backend="nimble", options={"policy": policy})(x)
    (program,) = nimble_fx.programs()
    assert len(seen) == WARM_UPS + 1
    assert len(set(seen)) == 1
    urgent = [i for i, stream in enumerate(seen[0]) if stream.priority < 0]
    assert urgent == [program.graph.urgent][:n_urgent]


def test_a_caller_on_a_stream_of_the_pool_leaves_enough_for_a_capture(cuda: Cuda) -> None:
    seen = Seen()
    with on_stream_of_pool(cuda):
        for urgent in (None, 0, MAX_STREAMS - 1):
            cuda.warm_up(MAX_STREAMS, seen, cuda.pool(), urgent=urgent)
    assert [len(set(streams)) for streams in seen] == [MAX_STREAMS] * 3


def test_a_caller_on_a_stream_of_the_pool_is_not_captured_on_it(cuda: Cuda) -> None:
    seen = Seen()
    with on_stream_of_pool(cuda) as caller:
        cuda.warm_up(1, seen, cuda.pool())
        cuda.capture(1, seen, cuda.pool())
    assert caller not in [*seen[0], *seen[1]]


def test_a_caller_on_a_stream_of_high_priority_is_not_captured_on_it(cuda: Cuda) -> None:
    seen = Seen()
    cuda.capture(1, seen, cuda.pool(), urgent=0)
    (first,) = seen[0]
    with torch.cuda.stream(first):
        cuda.capture(1, seen, cuda.pool(), urgent=0)
    (second,) = seen[1]
    assert second != first
    assert second.priority < 0


def test_streams_are_joined_after_an_exception_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"freeze": False, "policy": "nimble"}
    compiled = torch.compile(Branchy().cuda(), backend="nimble", options=options)
    x, settled = torch.randn(2, 4, device="cuda"), list[object]()
    with torch.no_grad():
        compiled(x)
        monkeypatch.setattr(Cuda, "settle", lambda *args: settled.append(args))
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compiled(x)
    assert len(settled) == 1


def test_nothing_outlives_a_capture_of_the_users(cuda: Cuda) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        cuda.settle(cuda.streams(2), ())
        assert cuda.is_capturing


def test_a_program_on_one_stream_records_it_on_no_output(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = list[object]()
    monkeypatch.setattr(Tensor, "record_stream", lambda *args: recorded.append(args))
    cuda.settle(cuda.streams(1), [torch.ones(2, device="cuda")])
    assert recorded == []
