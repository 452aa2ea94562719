"""CUDA devices: the only place that touches `torch.cuda`."""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, cached_property, partial
from math import ceil
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Event

from nimble_fx.devices import Capture, Stream
from nimble_fx.devices.lock import Lock
from nimble_fx.devices.specs import DEFAULT_GPU, DEVICES, Device, gpu
from nimble_fx.torch_internals.names import (
    clear_cublas_workspaces,
    current_cuda_device,
    current_cuda_stream,
    end_allocate_to_pool,
)

POOL_SIZE = 32
"""The number of streams in PyTorch's pool of each priority; more would alias these."""

MAX_STREAMS = POOL_SIZE - 1
"""One less, because the caller may be on a stream of the pool, which a program must not use."""

NORMAL, HIGH = 0, -1
"""Priorities of streams. Kernels captured on a stream keep its priority in the graph."""

N_REPEATS = 50
N_SAMPLES = 3
"""A call is timed by `N_SAMPLES` replays of a graph of `N_REPEATS` calls."""

_SHARES_RANDOM_STATE = torch.__version__ < "2.13"
"""Whether all CUDA graphs read a generator's state from the same memory.

PyTorch writes it there before each replay, and before each capture on the stream of the capture
(`CUDAGeneratorState::replay_prologue` and `capture_prologue`). Since 2.13 each has memory of its
own.
"""

_LOCK = Lock()
"""One lock for all devices, because no other thread may use a device during a capture."""


@contextmanager
def _fresh_workspaces() -> Iterator[None]:
    """Makes cuBLAS allocate new workspaces on all streams, and forget them afterwards.

    PyTorch caches one for each stream, but frees it with the first graph that was captured there
    (pytorch issue 193402). This way each graph has its own workspaces in its own pool, as in
    `torch._inductor.cudagraph_trees`.
    """
    clear_cublas_workspaces()
    try:
        yield
    finally:
        clear_cublas_workspaces()


@contextmanager
def _workspaces_of(nbytes: int) -> Iterator[None]:
    """Limits cuBLAS workspaces to so many bytes; a lower limit of the user's stays in effect."""
    size = torch.backends.cuda.cublas_workspace_size
    before = size()
    size(min(before, nbytes))
    try:
        yield
    finally:
        size(before)


def _nbytes(pool: Any, streams: Sequence[Any]) -> tuple[int, ...]:
    """The memory that a pool has reserved for each stream."""
    by_stream: Counter[int] = Counter()
    for segment in pool.snapshot():
        by_stream[segment["stream"]] += segment["total_size"]
    return tuple(by_stream[stream.cuda_stream] for stream in streams)


def _gpu_seconds(call: Callable[[], object]) -> float:
    """The seconds that the device takes for the work of a call on the current stream."""
    timing: Any = partial(torch.cuda.Event, enable_timing=True)
    start, end = timing(), timing()
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _is_on_gpu(value: object) -> bool:
    """Whether it is a tensor on a GPU; seeds of attention dropout may be on the host."""
    return isinstance(value, torch.Tensor) and value.is_cuda


class Cuda:
    """One CUDA device as a `DeviceRuntime`.

    All programs share its streams, which are created when first needed: each stream has its own
    memory pool, and fewer pools leave less memory unused.
    """

    stream_limit = MAX_STREAMS
    has_graphs = True
    can_time = True

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self._device = device
        self._streams: dict[int, dict[int, torch.cuda.Stream]] = {NORMAL: {}, HIGH: {}}
        self._callers: dict[int, torch.cuda.Stream] = {}

    @staticmethod
    @cache
    def get(device: torch.device) -> "Cuda":
        """The shared runtime of a device."""
        return Cuda(device)

    @property
    def hardware(self) -> str | None:
        """The model of the GPU; None if this machine has no GPU of this index."""
        if (self._device.index or 0) >= torch.cuda.device_count():
            return None
        return torch.cuda.get_device_name(self._device)

    @property
    def specs(self) -> Device:
        """The specifications of the GPU, or of `DEFAULT_GPU` if this machine has none."""
        hardware = self.hardware
        if hardware is None:
            return DEVICES[DEFAULT_GPU]
        n = torch.cuda.get_device_properties(self._device).multi_processor_count
        return gpu(hardware, n)

    @property
    def why_not_capture(self) -> str | None:
        """The reason why it cannot capture: the allocator is not the native caching allocator."""
        backend = torch.cuda.get_allocator_backend()
        return None if backend == "native" else f"the CUDA allocator is {backend}, not native"

    @property
    def is_capturing(self) -> bool:
        """Whether the caller's current stream is being captured."""
        if current_cuda_device() == self._device.index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self._device):
            return torch.cuda.is_current_stream_capturing()

    def exclusive(self) -> Lock:
        """The reentrant lock of all CUDA devices."""
        return _LOCK

    def streams(self, n: int) -> tuple[Stream, ...]:
        """The caller's current stream and `n - 1` side streams, all distinct."""
        caller = self._caller()
        if n == 1:
            return (caller,)
        return (caller, *self._side_streams(n - 1, caller.cuda_stream))

    def events(self, names: tuple[str, ...]) -> Any:
        """New events, without timing. Those of `torch.cuda` do the same through Python."""
        return SimpleNamespace(**{name: Event(self._device) for name in names})

    def settle(self, streams: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Joins the streams both ways and records the caller's stream on the outputs.

        Does nothing for one stream, nor in a capture, whose own joins are enough: both would last
        beyond the capture.
        """
        caller, *sides = streams
        if not sides or self.is_capturing:
            return
        for side in sides:
            caller.wait_stream(side)
        for side in sides:
            side.wait_stream(caller)
        for value in outputs:
            if _is_on_gpu(value):
                value.record_stream(caller)

    def synchronize(self) -> None:
        """Waits until all that was enqueued on it is done."""
        torch.cuda.synchronize(self._device)

    def free_garbage(self) -> None:
        """Collects garbage, which takes some tenths of a second."""
        gc.collect()

    def pool(self) -> Any:
        """A pool of the caching allocator."""
        new: Any = torch.cuda.MemPool
        with torch.cuda.device(self._device):
            return new()

    def limited_workspaces(self, nbytes: int | None) -> AbstractContextManager[None]:
        """Limits the workspaces of cuBLAS. PyTorch can do that since 2.13."""
        if nbytes is None or not hasattr(torch.backends.cuda, "cublas_workspace_size"):
            return nullcontext()
        return _workspaces_of(nbytes)

    def warm_up(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], object],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> None:
        """Runs a program on the capture streams; restores the random generator."""
        caller, streams = torch.cuda.current_stream(self._device), self._capture_streams(n, urgent)
        state = torch.cuda.get_rng_state(self._device)
        streams[0].wait_stream(caller)
        try:
            with (
                _fresh_workspaces(),
                torch.cuda.use_mem_pool(pool, self._device),
                torch.cuda.stream(streams[0]),
            ):
                run(streams)
        finally:
            self.synchronize()
            torch.cuda.set_rng_state(state, self._device)

    def capture(
        self,
        n: int,
        run: Callable[[tuple[Stream, ...]], Sequence[Any]],
        pool: Any,
        *,
        urgent: int | None = None,
    ) -> Capture:
        """Captures a program into a CUDA graph with its own cuBLAS workspaces."""
        graph, streams = torch.cuda.CUDAGraph(), self._capture_streams(n, urgent)
        with (
            torch.cuda.device(self._device),  # setting a stream makes its device the current one
            _fresh_workspaces(),
            self._into(graph, pool, streams[0]),
        ):
            outputs = run(streams)
        self.synchronize()  # with what PyTorch wrote before the capture, on the capture's stream
        replay = partial(self._replay, graph) if _SHARES_RANDOM_STATE else graph.replay
        return Capture(replay, outputs, pool, _nbytes(pool, streams))

    def time_us(self, replay: Callable[[], None], n: int) -> float:
        """Microseconds of a replay on the current stream, by events around `n` of them."""

        def replays() -> None:
            for _ in range(n):
                replay()

        state = torch.cuda.get_rng_state(self._device)
        try:
            with torch.cuda.device(self._device):
                return 1e6 * _gpu_seconds(replays) / n
        finally:
            torch.cuda.set_rng_state(state, self._device)

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """The seconds of a call's kernels, from replays of a CUDA graph of many calls."""

        def once(_: tuple[Stream, ...]) -> tuple[()]:
            for call in calls:
                call()
            return ()

        def repeated(streams: tuple[Stream, ...]) -> tuple[()]:
            for _ in range(n):
                once(streams)
            return ()

        n = ceil(N_REPEATS / len(calls))
        with self.exclusive(), torch.cuda.device(self._device):
            pool = self.pool()
            self.warm_up(1, once, pool)
            captured = self.capture(1, repeated, pool)
            captured.replay()
            samples = [_gpu_seconds(captured.replay) for _ in range(N_SAMPLES)]
        return median(samples) / (n * len(calls))

    @contextmanager
    def _into(self, graph: torch.cuda.CUDAGraph, pool: Any, stream: Any) -> Iterator[None]:
        """Captures the kernels of the block into a graph. An error of the block is raised as it is.

        Ending a broken capture raises a different error, and leaves torch on the capture stream.
        """
        caller, first = torch.cuda.current_stream(self._device), list[BaseException]()
        try:
            with torch.cuda.graph(graph, pool.id, stream, capture_error_mode="thread_local"):
                try:
                    yield
                except BaseException as error:
                    first.append(error)
                    raise
        except BaseException as error:
            if first != [error]:
                self._abandon_capture(pool, stream)
            if not first:
                raise
        finally:
            torch.cuda.set_stream(caller)
        if first:
            raise first.pop()  # outside of the handlers, so that no reference cycle keeps memory

    def _abandon_capture(self, pool: Any, stream: Any) -> None:
        """Cleans up the state that PyTorch leaves behind when it cannot end a capture.

        Otherwise freeing the pool would abort the process, and operators that draw random numbers
        would raise errors, as if they were still being captured, until the next capture.
        """
        graph = torch.cuda.CUDAGraph()
        with suppress(RuntimeError), warnings.catch_warnings():  # the first error says more
            warnings.simplefilter("ignore")  # that it is empty
            with suppress(RuntimeError):  # some versions of PyTorch have ended it
                end_allocate_to_pool(self._device.index or 0, pool.id)
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                graph.capture_end()

    @cached_property
    def _last_replay(self) -> Event:
        return Event(self._device)

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        """Replays a graph after the last replay of any graph, whose random state it overwrites."""
        caller = self._caller()
        with self.exclusive():  # of other threads' replays and captures
            caller.wait_event(self._last_replay)
            graph.replay()
            self._last_replay.record(caller)

    def _caller(self) -> Any:
        """The caller's current stream; cached, because PyTorch makes a new object in each call."""
        index = self._device.index
        if index is None:
            return torch.cuda.current_stream()
        handle = current_cuda_stream(index)
        caller = self._callers.get(handle)
        if caller is None:
            caller = self._callers[handle] = torch.cuda.current_stream(self._device)
        return caller

    def _capture_streams(self, n: int, urgent: int | None) -> tuple[Any, ...]:
        """`n` streams other than the caller's; the urgent one has high priority."""
        caller = torch.cuda.current_stream(self._device).cuda_stream
        streams = list(self._side_streams(n, caller))
        if urgent is not None:
            (streams[urgent],) = self._side_streams(1, caller, HIGH)
        return tuple(streams)

    def _side_streams(self, n: int, caller: int, priority: int = NORMAL) -> tuple[Any, ...]:
        """`n` distinct streams of a priority, without the caller's; the same ones each time."""
        known = self._streams[priority]
        for _ in range(2 * POOL_SIZE):
            if len(known.keys() - {caller}) >= n:
                break
            new: Any = torch.cuda.Stream
            stream = new(self._device, priority=priority)
            known[stream.cuda_stream] = stream
        usable = [stream for address, stream in known.items() if address != caller]
        return tuple(usable[: max(n, 0)])
