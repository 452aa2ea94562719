"""CUDA devices: the only place that touches `torch.cuda`."""

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from nimble_fx.devices import Capture, Stream

POOL_SIZE = 32
"""Streams in PyTorch's pool; past that, new ones are aliases of old ones."""


class Cuda:
    """One CUDA device behind the `Device` protocol.

    Its streams are made once and shared by all programs: each stream has a memory pool of its own,
    and few pools strand less memory.
    """

    max_streams = POOL_SIZE

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self._device = device
        self._streams = [
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for _ in range(POOL_SIZE)
        ]
        distinct = len({stream.cuda_stream for stream in self._streams})
        self.max_streams = distinct

    @staticmethod
    @cache
    def get(device: torch.device) -> "Cuda":
        """The one Cuda for a device."""
        return Cuda(device)

    @property
    def why_not_capture(self) -> str | None:
        """CUDA graphs need the native caching allocator."""
        backend = torch.cuda.get_allocator_backend()
        return None if backend == "native" else f"the CUDA allocator is {backend}, not native"

    def streams(self, n: int) -> tuple[Stream, ...]:
        """The caller's current stream and `n - 1` side streams."""
        return (torch.cuda.current_stream(self._device), *self._streams[1:n])

    def events(self, names: tuple[str, ...]) -> Any:
        """Fresh events, without timing."""
        fresh: Any = torch.cuda.Event
        return SimpleNamespace(**{name: fresh() for name in names})

    def hand_over(self, outputs: Sequence[Any]) -> None:
        """Tells the allocator that the caller's stream uses the outputs."""
        caller = torch.cuda.current_stream(self._device)
        for value in outputs:
            if isinstance(value, torch.Tensor):
                value.record_stream(caller)

    def warm_up(self, n: int, run: Callable[[tuple[Stream, ...]], object]) -> None:
        """Runs a program on the capture streams; the generator is put back where it was."""
        caller, streams = torch.cuda.current_stream(self._device), self._streams[:n]
        state = torch.cuda.get_rng_state(self._device)
        streams[0].wait_stream(caller)
        try:
            with torch.cuda.stream(streams[0]):
                run(tuple(streams))
        finally:
            torch.cuda.synchronize(self._device)
            torch.cuda.set_rng_state(state, self._device)

    def capture(self, n: int, run: Callable[[tuple[Stream, ...]], Sequence[Any]]) -> Capture:
        """Captures into a CUDA graph with a memory pool of its own."""
        streams = self._streams[:n]
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, stream=streams[0], capture_error_mode="thread_local"),
        ):
            outputs = run(tuple(streams))
        return Capture(graph.replay, outputs)
