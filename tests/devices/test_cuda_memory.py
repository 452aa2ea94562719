"""What memory warm-ups and captures on CUDA leave behind and share. Needs a GPU."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.devices import Capture
from nimble_fx.devices.cuda import Cuda

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Cuda:
    return Cuda.get(torch.device("cuda", 0))


@pytest.fixture
def without_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def reserved() -> int:
    """The bytes that PyTorch has reserved and cannot give back."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def multiplied(cuda: Cuda, x: Tensor) -> Capture:
    """A capture of a matrix product."""

    def run(streams: Sequence[Any]) -> list[Tensor]:
        with streams[0]:
            return [x @ x]

    pool = cuda.pool()
    cuda.warm_up(1, run, pool)
    return cuda.capture(1, run, pool)


@pytest.mark.usefixtures("without_garbage_collector")
def test_a_capture_that_breaks_keeps_no_memory(cuda: Cuda) -> None:
    seen = list[weakref.ref[Tensor]]()

    def run(streams: Sequence[Any]) -> Sequence[Any]:
        x = torch.zeros(2, device="cuda")
        seen.append(weakref.ref(x))
        raise ZeroDivisionError

    before = reserved()
    with suppress(ZeroDivisionError):
        cuda.capture(2, run, cuda.pool())
    assert seen[0]() is None
    assert reserved() == before


@pytest.mark.usefixtures("without_garbage_collector")
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_warm_up_that_fails_leaves_no_trace(error: type[BaseException], cuda: Cuda) -> None:
    x = torch.rand(3, 3, device="cuda")

    def run(streams: Sequence[Any]) -> None:
        with streams[0]:
            torch.rand(3, 3, device="cuda") @ x
        raise error

    before, generator = reserved(), torch.cuda.get_rng_state()
    stream, pool = torch.cuda.current_stream(), cuda.pool()
    with pytest.raises(error):
        cuda.warm_up(1, run, pool)
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    assert torch.cuda.current_stream() == stream
    del pool
    assert reserved() == before


def test_a_capture_has_a_workspace_of_its_own_after_work_on_its_stream(cuda: Cuda) -> None:
    x = torch.randn(3, 3, device="cuda")
    alone = multiplied(cuda, x).nbytes
    (stream,) = cuda._capture_streams(1, None)
    with torch.cuda.stream(stream):
        x @ x
    torch.cuda.synchronize()

    def run(streams: Sequence[Any]) -> list[Tensor]:
        with streams[0]:
            return [x @ x]

    assert cuda.capture(1, run, cuda.pool()).nbytes == alone
    assert alone[0] > x.nbytes


def test_a_graph_replays_once_another_of_its_stream_is_dropped(cuda: Cuda) -> None:
    x = torch.randn(3, 3, device="cuda")
    dropped, kept = multiplied(cuda, torch.eye(3, device="cuda")), multiplied(cuda, x)
    del dropped
    torch.cuda.empty_cache()
    kept.replay()
    torch.testing.assert_close(kept.outputs[0], x @ x)


@pytest.mark.usefixtures("without_garbage_collector")
def test_the_memory_of_a_capture_is_gone_with_it(cuda: Cuda) -> None:
    x = torch.eye(3, device="cuda")
    multiplied(cuda, x)  # the first product of a process makes a handle
    before = reserved()
    capture = multiplied(cuda, x)
    assert reserved() >= before + sum(capture.nbytes)
    del capture
    assert reserved() == before
