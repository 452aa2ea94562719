"""A device that captures and replays on the CPU, to test freezing without a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.devices import Capture, Stream
from nimble_fx.devices.cpu import Cpu


class ReplayingDevice(Cpu):
    """A CPU that can capture; it counts what it is asked to do."""

    why_not_capture = None  # type: ignore[assignment]

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail
        self.n_warm_ups = self.n_captures = self.n_replays = 0

    def warm_up(self, n: int, run: Callable[[tuple[Stream, ...]], object]) -> None:
        self.n_warm_ups += 1
        state = torch.get_rng_state()
        try:
            run(self.streams(n))
        finally:
            torch.set_rng_state(state)

    def capture(self, n: int, run: Callable[[tuple[Stream, ...]], Sequence[Any]]) -> Capture:
        if self.fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.n_captures += 1
        recorder = Recorder()
        with recorder:
            outputs = run(self.streams(n))

        def replay() -> None:
            self.n_replays += 1
            recorder.replay()

        return Capture(replay, outputs)


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
