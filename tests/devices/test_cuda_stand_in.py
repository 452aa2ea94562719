"""Every line of the CUDA device, without a GPU: against a stand-in for `torch.cuda`."""

import inspect
import warnings
from collections.abc import Iterator

import pytest
import torch

import nimble_fx
from nimble_fx.devices.cuda import POOL_SIZE, Cuda
from nimble_fx.errors import NimbleWarning
from tests import cuda_stand_in
from tests.cuda_stand_in import Stream
from tests.eager import assert_inference_is_eagers
from tests.models import CASES


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """The default stream; programs run on a CUDA device that is made of stand-ins."""
    default = cuda_stand_in.install(monkeypatch)
    device = Cuda(torch.device("cuda", 0))
    monkeypatch.setattr("nimble_fx.backend.device_for", lambda _: device)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NimbleWarning)
        yield default
    assert Stream.current is default


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", ["branchy", "googlenet", "recurrent", "dropout", "cache", "views"])
def test_inference_is_eagers(name: str, freeze: bool, default: Stream) -> None:
    assert_inference_is_eagers(CASES[name], {"freeze": freeze})
    programs = [p for p in nimble_fx.programs() if p.graph.launching]
    assert all(bool(program.status.n_captures) == freeze for program in programs)


def test_a_program_runs_on_as_many_distinct_streams_as_it_wants(default: Stream) -> None:
    device = Cuda(torch.device("cuda", 0))
    streams = device.streams(POOL_SIZE)
    assert streams[0] is default
    assert len({stream.cuda_stream for stream in streams}) == POOL_SIZE  # type: ignore[attr-defined]
    assert device.streams(3)[1:] == streams[1:3]
    assert device.streams(0) == device.streams(1) == (default,)


def test_the_callers_stream_is_no_side_stream_of_its_own_program(default: Stream) -> None:
    device = Cuda(torch.device("cuda", 0))
    pool = device.streams(POOL_SIZE)[1:]
    with pool[0] as caller:
        streams = device.streams(POOL_SIZE)
    assert streams[0] is caller
    assert caller not in streams[1:]
    assert len(set(streams)) == POOL_SIZE


def test_streams_wait_for_each_other_after_a_program(default: Stream) -> None:
    device = Cuda(torch.device("cuda", 0))
    caller, first, second = streams = device.streams(3)
    device.settle(streams, ())
    assert caller.waited == [first.cuda_stream, second.cuda_stream]  # type: ignore[attr-defined]
    assert first.waited == second.waited == [0]  # type: ignore[attr-defined]


def test_streams_wait_for_each_other_after_an_exception_too(
    default: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile(CASES["branchy"].model(), backend="nimble", options={"freeze": False})
    with torch.no_grad():
        compiled(torch.randn(2, 4))
        default.waited.clear()
        monkeypatch.setattr(Stream, "wait_event", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compiled(torch.randn(2, 4))
    assert default.waited


def test_nothing_outlives_a_capture_of_the_users(
    default: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Cuda(torch.device("cuda", 0))
    streams = device.streams(2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    device.settle(streams, ())
    assert device.is_capturing
    assert default.waited == []


def test_a_broken_capture_leaves_the_caller_on_its_stream(default: Stream) -> None:
    device = Cuda(torch.device("cuda", 0))
    with pytest.raises(ZeroDivisionError):
        device.capture(2, lambda streams: [1 / 0], device.pool())
    assert Stream.current is default


def test_warm_up_gives_random_numbers_back_even_if_it_fails(default: Stream) -> None:
    device = Cuda(torch.device("cuda", 0))
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        run = lambda streams: [torch.rand(3), 1 / 0]  # noqa: E731
        device.warm_up(1, run, device.pool(), may_synchronize=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_warm_up_comes_after_what_the_caller_was_given(default: Stream) -> None:
    seen: list[Stream] = []
    device = Cuda(torch.device("cuda", 0))
    device.warm_up(2, seen.extend, device.pool(), may_synchronize=True)  # type: ignore[arg-type]
    assert seen[0].waited == [default.cuda_stream]


def test_other_allocators_cannot_capture(default: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Cuda(torch.device("cuda", 0))
    assert device.why_not_capture is None
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert "cudaMallocAsync" in str(device.why_not_capture)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("graph", {"cuda_graph": 1, "stream": 2, "capture_error_mode": "thread_local"}),
        ("stream", {"stream": 1}),
        ("device", {"device": 1}),
        ("current_stream", {"device": 1}),
        ("set_stream", {"stream": 1}),
        ("synchronize", {"device": 1}),
        ("is_current_stream_capturing", {}),
        ("get_allocator_backend", {}),
        ("get_rng_state", {"device": 1}),
        ("set_rng_state", {"new_state": 1, "device": 2}),
        ("Event", {}),
    ],
)
def test_torch_cuda_takes_what_the_device_gives_it(name: str, arguments: dict[str, object]) -> None:
    bound = inspect.signature(getattr(torch.cuda, name)).bind(**arguments)
    assert dict(bound.arguments) == arguments


def test_a_device_is_there_if_there_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert Cuda(torch.device("cuda", 0)).hardware == "GPU 0"
    assert Cuda(torch.device("cuda", 1)).hardware is None
