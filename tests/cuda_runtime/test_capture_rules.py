"""What CUDA forbids during a stream capture is an error, and invalidates the capture."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.cuda_runtime.cuda_libraries import driver, runtime

pytestmark = pytest.mark.gpu

INVALIDATED = "previous error during capture"
UNSUPPORTED, INVALIDATED_ERROR, IMPLICIT, WRONG_THREAD = 900, 901, 906, 908  # of cudaError_t
ILLEGAL_STATE = 401
BLOCKING, NON_BLOCKING = 0, 1  # flags of cudaStreamCreateWithFlags
THREAD_LOCAL, RELAXED = 1, 2  # of cudaStreamCaptureMode


@pytest.fixture(autouse=True)
def no_error_is_left() -> Iterator[None]:
    """What a call returned without PyTorch would be raised at the next launch, in another test."""
    yield
    runtime.cudaGetLastError()


def capture(body: Callable[[Tensor], object], mode: str = "global") -> str:
    """Captures a product and then the body; returns the first line of the error, or nothing."""
    x = torch.ones(4, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
            body(x * 2)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())
    return ""


def elsewhere(call: Callable[[], object]) -> str:
    """Calls in another thread; returns the first line of the error, or nothing."""
    said = list[str]()

    def run() -> None:
        try:
            call()
        except RuntimeError as error:
            said.append(str(error).partition("\n")[0])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return "".join(said)


def allocate() -> Tensor:
    """More memory than is cached, so that the allocator calls cudaMalloc."""
    return torch.empty(64 << 20, device="cuda")


def test_a_capture_that_keeps_the_rules_is_no_error() -> None:
    side = torch.cuda.Stream()

    def body(x: Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        torch.cuda.current_stream().wait_stream(side)
        torch.relu(y)

    assert capture(body) == ""


def test_a_fork_that_is_not_joined_is_an_error() -> None:
    side = torch.cuda.Stream()

    def body(x: Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.relu(x)

    assert "unjoined work" in capture(body)


def test_a_fork_on_which_nothing_is_captured_need_not_be_joined() -> None:
    side = torch.cuda.Stream()
    assert capture(lambda _: side.wait_stream(torch.cuda.current_stream())) == ""


def test_waiting_for_the_captured_stream_is_an_error() -> None:
    assert INVALIDATED in capture(lambda _: _quietly(torch.cuda.current_stream().synchronize))


def test_asking_whether_the_captured_stream_is_done_is_an_error() -> None:
    assert INVALIDATED in capture(lambda _: _quietly(torch.cuda.current_stream().query))


def test_waiting_for_the_device_is_an_error() -> None:
    assert INVALIDATED in capture(lambda _: _quietly(torch.cuda.synchronize))


def test_reading_a_number_is_an_error() -> None:
    assert INVALIDATED in capture(lambda x: _quietly(x[0].item))


def test_waiting_for_work_outside_of_the_capture_is_an_error() -> None:
    event = torch.cuda.Event()
    event.record(torch.cuda.Stream())
    assert INVALIDATED in capture(lambda _: _quietly(torch.cuda.current_stream().wait_event, event))


def test_asking_for_a_captured_event_is_an_error() -> None:
    def body(_: Tensor) -> None:
        event = torch.cuda.Event()
        event.record()
        with pytest.raises(RuntimeError, match="event last recorded in a capturing stream"):
            event.query()

    assert INVALIDATED in capture(body)


def test_a_captured_event_is_of_no_use_once_the_capture_has_ended() -> None:
    event = torch.cuda.Event()
    assert capture(lambda _: event.record()) == ""
    with pytest.raises(RuntimeError, match="invalid argument"):
        torch.cuda.current_stream().wait_event(event)


def test_two_captures_do_not_merge() -> None:
    event, other = torch.cuda.Event(), torch.cuda.Stream()

    def body(_: Tensor) -> None:
        event.record()
        inner = torch.cuda.CUDAGraph()
        with torch.cuda.stream(other):
            inner.capture_begin(capture_error_mode="relaxed")
            with pytest.raises(RuntimeError, match="merge of separate capture sequences"):
                other.wait_event(event)
            with pytest.raises(RuntimeError, match=INVALIDATED):
                inner.capture_end()

    assert INVALIDATED in capture(body, mode="relaxed")


def test_the_legacy_stream_is_not_captured() -> None:
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


@pytest.mark.parametrize(
    ("mode", "is_prohibited"), [("global", True), ("thread_local", False), ("relaxed", False)]
)
def test_another_threads_cuda_malloc_breaks_a_global_capture_alone(
    mode: str, is_prohibited: bool
) -> None:
    said = list[str]()
    ended = capture(lambda _: said.append(elsewhere(allocate)), mode)
    assert ("not permitted when stream is capturing" in said[0]) == is_prohibited
    assert (INVALIDATED in ended) == is_prohibited


@pytest.mark.parametrize(
    ("mode", "is_prohibited"), [("global", True), ("thread_local", True), ("relaxed", False)]
)
def test_an_unsafe_call_of_the_capturing_thread_is_allowed_in_a_relaxed_capture_alone(
    mode: str, is_prohibited: bool
) -> None:
    address, said = ctypes.c_void_p(), list[int]()
    ended = capture(lambda _: said.append(runtime.cudaMalloc(ctypes.byref(address), 4096)), mode)
    assert said == [UNSUPPORTED if is_prohibited else 0]
    assert (INVALIDATED in ended) == is_prohibited


def test_a_callback_is_not_captured() -> None:
    stream = torch.cuda.Stream()
    handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        lambda *_: None
    )
    assert runtime.cudaStreamBeginCapture(handle, THREAD_LOCAL) == 0
    assert runtime.cudaStreamAddCallback(handle, callback, None, 0) == UNSUPPORTED
    assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == INVALIDATED_ERROR


@pytest.mark.parametrize(
    ("flags", "mode", "error"),
    [
        (BLOCKING, RELAXED, IMPLICIT),
        (NON_BLOCKING, RELAXED, 0),
        (NON_BLOCKING, THREAD_LOCAL, UNSUPPORTED),
    ],
)
def test_the_legacy_stream_is_asked_in_relaxed_captures_of_non_blocking_streams_alone(
    flags: int, mode: int, error: int
) -> None:
    torch.cuda.init()
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), flags) == 0
    assert runtime.cudaStreamBeginCapture(stream, mode) == 0
    assert runtime.cudaStreamQuery(None) == error
    ended = runtime.cudaStreamEndCapture(stream, ctypes.byref(graph))
    assert ended == (INVALIDATED_ERROR if error else 0)


def test_the_driver_says_whether_a_stream_is_captured() -> None:
    def is_captured() -> int:
        found = ctypes.c_int()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert driver.cuStreamIsCapturing(stream, ctypes.byref(found)) == 0
        return found.value

    said = list[int]()
    assert capture(lambda _: said.append(is_captured())) == ""
    assert [*said, is_captured()] == [1, 0]


def test_a_capture_ends_in_the_thread_in_which_it_began() -> None:
    stream, graph = torch.cuda.Stream(), ctypes.c_void_p()
    handle, said = ctypes.c_void_p(stream.cuda_stream), list[int]()
    assert runtime.cudaStreamBeginCapture(handle, THREAD_LOCAL) == 0
    end = partial(runtime.cudaStreamEndCapture, handle, ctypes.byref(graph))
    elsewhere(lambda: said.append(end()))
    assert [*said, end()] == [WRONG_THREAD, ILLEGAL_STATE]  # it has ended there, invalid
    assert not graph.value


def test_a_graph_is_not_launched_in_a_capture() -> None:
    x, stream = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    handle = ctypes.c_void_p(stream.cuda_stream)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    assert runtime.cudaStreamBeginCapture(handle, THREAD_LOCAL) == 0
    with torch.cuda.stream(stream):
        x.add_(1)
    assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
    made = ctypes.byref(executable)
    assert runtime.cudaGraphInstantiateWithFlags(made, graph, ctypes.c_ulonglong(0)) == 0
    assert runtime.cudaStreamBeginCapture(handle, THREAD_LOCAL) == 0
    assert runtime.cudaGraphLaunch(executable, handle) == UNSUPPORTED
    runtime.cudaStreamEndCapture(handle, ctypes.byref(graph))


def _quietly(call: Callable[..., object], *args: object) -> None:
    with pytest.raises(RuntimeError):
        call(*args)
