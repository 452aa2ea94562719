"""A stand-in for the names of `torch.cuda` that `devices/cuda.py` uses: the virtual device.

Kernels are queued and run in any order that streams and events allow, freed memory is handed out
again, captures are strict. So what the CUDA device leaves to chance shows on CPU tensors; whether
a GPU agrees does not.

Within a call of a compiled program the caller's stream is asynchronous as well. After it the host
waits for the caller's stream and no other, since tests look at results as the CPU's. Whatever else
is done outside of `with stream:` is done at once.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from itertools import count
from random import Random
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from nimble_fx.devices.cuda import Cuda
from nimble_fx.devices.virtual.device import Virtual, VirtualEvent, VirtualStream
from nimble_fx.devices.virtual.launch import LaunchMode
from nimble_fx.devices.virtual.memory import Pool, poison
from nimble_fx.devices.virtual.state import VirtualCapture
from nimble_fx.runtime.capture import autotuning
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.launch import Launcher

POOL_SIZE = 32
WORKSPACE_NBYTES = 64
_USE_CUBLAS = {"mm", "addmm", "bmm", "baddbmm"}


class Gpu(Virtual):
    """The virtual device and what PyTorch keeps for one: streams, pools, workspaces, a mode."""

    now: ClassVar["Gpu"]

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.next_stream: dict[int, Iterator[int]] = {0: count(), -1: count()}
        self.next_pool = count(1)
        self.n_replays = 0
        self.pools: weakref.WeakValueDictionary[tuple[int, int], Pool]
        self.pools = weakref.WeakValueDictionary()
        self.workspaces: dict[int, torch.UntypedStorage] = {}
        self._blocks: dict[int, weakref.ref[Tensor]] = {}
        self.replay_ms: Callable[[], float] = partial(Random(seed).uniform, 0.01, 1.0)
        self._launching = _LaunchModeWithWorkspaces(self)
        self.cuda = Cuda(torch.device("cuda", 0))

    @property
    def launching(self) -> type[LaunchMode]:
        """What operators run through, for those that do something of their own as they launch."""
        return type(self._launching)

    @property
    def current(self) -> int:
        """The calling thread's stream."""
        return self._host.current

    @current.setter
    def current(self, stream: int) -> None:
        self._host.current = stream

    @contextmanager
    def using(self, pool: Pool) -> Iterator[None]:
        with self._host.using(pool):
            yield

    @contextmanager
    def asynchronous(self) -> Iterator[None]:
        """Within, the current stream is one like others. It is left as the block leaves it."""
        self.enter(Stream(stream_id=self.current))
        try:
            yield
        finally:
            current = self.current
            self.leave()
            self.current = current
        if not self._host.is_inside:
            self.wait_for(Stream(stream_id=self.current))

    def record_stream(self, tensor: Tensor, stream: "Stream") -> None:
        if not self.keeps_alive(tensor):
            self._host.scratch.use_on(stream.index, tensor.untyped_storage())

    def use_workspace(self) -> None:
        """Queues what cuBLAS does before it multiplies: it writes into the stream's workspace."""
        capture = self._capture_of(self.current)
        pool = self._host.pool if capture is None else capture.pool
        if self.current not in self.workspaces:
            self.workspaces[self.current] = self.allocate(WORKSPACE_NBYTES)
            self._blocks[self.current] = weakref.ref(pool.block_of(self.workspaces[self.current]))
        memory = self._blocks[self.current]

        def write() -> None:
            block = memory()
            if block is None:
                raise RuntimeError("an illegal memory access was encountered")
            poison(block)

        self.launch(write)


class _LaunchModeWithWorkspaces(LaunchMode):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self._gpu = weakref.ref(gpu)

    def _enqueue(self, func: Any, *others: Any) -> None:
        gpu = self._gpu()
        if gpu is not None and func.overloadpacket.__name__ in _USE_CUBLAS:
            gpu.use_workspace()
        super()._enqueue(func, *others)


class Stream(VirtualStream):
    """A stream of a pool that wraps round, as PyTorch's does; `stream_id` 0 is the default one.

    Each priority has a pool of its own.
    """

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        gpu = Gpu.now
        index = kwargs.get("stream_id")
        if index is None:
            index = next(gpu.next_stream[priority]) % POOL_SIZE + 1 - priority * POOL_SIZE
        super().__init__(gpu, index)

    @property
    def priority(self) -> int:
        """0, or -1, which goes first."""
        return -((self.index - 1) // POOL_SIZE) if self.index else 0

    @property
    def cuda_stream(self) -> int:
        """Its handle."""
        return 0x1000 * self.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.index == self.index

    def __hash__(self) -> int:
        return self.index

    def wait_stream(self, stream: "Stream") -> None:
        event = Event()
        event.record(stream)
        self.wait_event(event)


class Event(VirtualEvent):
    """An event."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        super().__init__()
        self._is_timed = enable_timing
        self._n_replays = 0

    def record(self, stream: VirtualStream | None = None) -> None:
        super().record(current_stream() if stream is None else stream)
        self._n_replays = Gpu.now.n_replays

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds, as many as the replays of graphs in between are said to take."""
        if not (self._is_timed and end_event._is_timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'")
        return Gpu.now.replay_ms() * (end_event._n_replays - self._n_replays)


class MemPool:
    """A pool of memory, which lives as long as this, or graphs or tensors in it."""

    def __init__(
        self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.pool = Gpu.now.pool()
        self.id = (0, next(Gpu.now.next_pool))
        Gpu.now.pools[self.id] = self.pool

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        return [
            {"stream": Stream(stream_id=stream).cuda_stream, "total_size": nbytes}
            for stream, nbytes in self.pool.segments
        ]


class CUDAGraph:
    """A capture. When it goes, so does the workspace of the stream that it was captured on."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._gpu = Gpu.now
        self._recorded: VirtualCapture | None = None

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
    ) -> None:
        memory = self._gpu.pool() if pool is None else self._gpu.pools[pool]
        self._gpu.begin_capture(current_stream(), memory)

    def capture_end(self) -> None:
        recorded = self._gpu.end_capture()
        recorded.check()
        self._recorded = recorded

    def replay(self) -> None:
        assert self._recorded is not None
        self._gpu.n_replays += 1
        self._gpu.replay(self._recorded)

    def reset(self) -> None:
        if self._recorded is not None:
            self._gpu.workspaces.pop(self._recorded.origin, None)
        self._recorded = None

    def __del__(self) -> None:
        self.reset()


class Graph:
    """`torch.cuda.graph`: where ending a broken capture raises, the stream is not restored."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: tuple[int, int] | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._stream = Stream() if stream is None else stream

    def __enter__(self) -> None:
        Gpu.now.synchronize()
        self._stream.__enter__()
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *args: Any) -> None:
        try:
            self._graph.capture_end()
        except RuntimeError:
            self._stream.__exit__(*args)
            set_stream(self._stream)
            raise
        self._stream.__exit__(*args)


def stream(stream: Stream | None) -> Any:
    return device(None) if stream is None else stream


@contextmanager
def device(device: Any) -> Iterator[None]:
    yield


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    with Gpu.now.using(pool.pool):
        yield


def current_stream(device: Any = None) -> Stream:
    return Stream(stream_id=Gpu.now.current)


def set_stream(stream: Stream) -> None:
    Gpu.now.current = stream.index


def device_count() -> int:
    """None, so that this machine's are not asked for what the stand-in's device is."""
    return 0


def synchronize(device: Any = None) -> None:
    Gpu.now.synchronize()


def is_current_stream_capturing() -> bool:
    return Gpu.now.is_capturing


def get_allocator_backend() -> str:
    return "native"


def get_rng_state(device: Any = "cuda") -> Tensor:
    return torch.get_rng_state()


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    torch.set_rng_state(new_state)


def clear_cublas_workspaces() -> None:
    Gpu.now.workspaces.clear()


def record_stream(tensor: Tensor, stream: Stream) -> None:
    Gpu.now.record_stream(tensor, stream)


STAND_INS: dict[str, Any] = {
    "Stream": Stream,
    "Event": Event,
    "MemPool": MemPool,
    "CUDAGraph": CUDAGraph,
    "graph": Graph,
    "stream": stream,
    "device": device,
    "use_mem_pool": use_mem_pool,
    "current_stream": current_stream,
    "set_stream": set_stream,
    "device_count": device_count,
    "synchronize": synchronize,
    "is_current_stream_capturing": is_current_stream_capturing,
    "get_allocator_backend": get_allocator_backend,
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
}
"""By their names in `torch.cuda`."""


def install(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> Gpu:
    """Puts the stand-in in place of `torch.cuda` and compiles for it, for the rest of a test."""
    gpu = Gpu(seed)
    monkeypatch.setattr(Gpu, "now", gpu, raising=False)
    monkeypatch.setattr("nimble_fx.this_machine.device_for", lambda _: gpu.cuda)
    monkeypatch.setattr(autotuning, "N_ROUNDS", 2)  # a GPU takes 100,000 times less for each
    monkeypatch.setattr(autotuning, "N_REPLAYS", 2)
    for name, stand_in in STAND_INS.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr("nimble_fx.devices.cuda.clear_cublas_workspaces", clear_cublas_workspaces)
    monkeypatch.setattr("nimble_fx.devices.cuda.end_allocate_to_pool", lambda device, pool: None)
    monkeypatch.setattr(
        torch.backends.cuda, "cublas_workspace_size", lambda _=None: WORKSPACE_NBYTES, raising=False
    )
    monkeypatch.setattr("nimble_fx.devices.cuda.current_cuda_device", lambda: 0)
    monkeypatch.setattr(
        "nimble_fx.devices.cuda.current_cuda_stream", lambda index: current_stream().cuda_stream
    )
    monkeypatch.setattr("nimble_fx.devices.cuda._is_on_gpu", lambda x: isinstance(x, Tensor))
    monkeypatch.setattr("nimble_fx.devices.cuda.Event", lambda device: Event())
    monkeypatch.setattr(Tensor, "record_stream", record_stream)
    for program in (Launcher, FrozenProgram):
        monkeypatch.setattr(program, "__call__", _asynchronous(program.__call__))
    return gpu


def _asynchronous(call: Callable[[Any, list[Any]], Any]) -> Callable[[Any, list[Any]], Any]:
    @wraps(call)
    def called(program: Any, args: list[Any]) -> Any:
        with Gpu.now.asynchronous():
            return call(program, args)

    return called
