"""A stand-in for the names of `torch.cuda` that `devices/cuda.py` uses, on CPU tensors.

Streams know which one is current, events and joins are noted, and a capture records operators so
that a replay runs them again on the memory that they were captured with. It shows that each line
of the device runs and in which order it calls; it does not show that a GPU agrees.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

POOL = 32


class Stream:
    """A stream of a pool that wraps round, as PyTorch's does."""

    made = count()
    current: "Stream"

    def __init__(self, device: object = None, address: int | None = None) -> None:
        self.cuda_stream = next(Stream.made) % POOL + 1 if address is None else address
        self.waited: list[object] = []
        self._before: list[Stream] = []

    def __enter__(self) -> "Stream":
        self._before.append(Stream.current)
        Stream.current = self
        return self

    def __exit__(self, *error: object) -> None:
        Stream.current = self._before.pop()

    def wait_event(self, event: "Event") -> None:
        self.waited.append(event)

    def wait_stream(self, stream: "Stream") -> None:
        self.waited.append(stream.cuda_stream)


class Event:
    """An event that knows where it was recorded."""

    stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream


class CUDAGraph:
    """What was captured."""

    def __init__(self) -> None:
        self.recorder = Recorder()

    def replay(self) -> None:
        self.recorder.replay()


@contextmanager
def graph(
    cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
) -> Iterator[None]:
    """As torch's: where ending a broken capture raises, the stream is not restored."""
    before, Stream.current = Stream.current, stream
    with cuda_graph.recorder:
        yield
    Stream.current = before


@contextmanager
def nothing(*args: object) -> Iterator[None]:
    yield


def install(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Puts the stand-in in place; the default stream."""
    Stream.made = count()
    Stream.current = default = Stream(address=0)
    stand_ins: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "stream": lambda stream: stream,
        "device": nothing,
        "current_stream": lambda device=None: Stream.current,
        "set_stream": lambda stream: setattr(Stream, "current", stream),
        "synchronize": lambda device=None: None,
        "is_current_stream_capturing": lambda: False,
        "get_allocator_backend": lambda: "native",
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return default


class Recorder(TorchDispatchMode):
    """Plays a CUDA graph: inside, operators are noted and nothing is computed in the end.

    A replay runs them again on the memory that they were captured with.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._undo: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> "Recorder":
        self._generator = torch.get_rng_state()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for tensor, before in reversed(self._undo):
            tensor.copy_(before)
        self._undo.clear()
        torch.set_rng_state(self._generator)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for parameter, value in zip(func._schema.arguments, args, strict=False):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                self._undo.append((value, value.clone()))
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Runs the operators again; results go where they were."""
        for func, args, kwargs, fixed in self._calls:
            for old, new in zip(_tensors(fixed), _tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, (list, tuple)) else [result]
    return [item for item in items if isinstance(item, torch.Tensor)]
