"""How a program is captured once and replayed: warm-up, static inputs, outputs of one's own."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nimble_fx.devices import Device, Stream
from nimble_fx.errors import NimbleWarning
from nimble_fx.ir import TaskGraph, TensorType
from nimble_fx.launch import Launcher

WARM_UPS = 3
"""Runs before a capture, so that libraries load, tune and allocate outside of it."""

_NOT_FROZEN_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


@dataclass
class Status:
    """Whether a program is frozen, and if not, why."""

    frozen: bool = False
    reason: str | None = None


def why_not_freeze(graph: TaskGraph, device: Device) -> str | None:
    """Why a program cannot be captured on a device; None if it can, as far as the graph tells."""
    if device.why_not_capture is not None:
        return device.why_not_capture
    if not graph.launching:
        return "it launches nothing"
    for value in graph.inputs:
        if not isinstance(value.type, TensorType):
            return f"input {value.name} is a number, not a tensor"
        if any(stride == 0 for stride in value.type.stride):
            return f"input {value.name} is expanded: its elements share memory"
    for task in graph.tasks:
        tags = getattr(task.target, "tags", ())
        if not _NOT_FROZEN_TAGS.isdisjoint(tags):
            return f"{task.name} depends on data at run time [{task.source}]"
    return None


class Frozen:
    """Runs a program from its capture: copies what is new in, replays, copies results out."""

    def __init__(self, launcher: Launcher, status: Status) -> None:
        self._boxed_call = True  # AOTAutograd's mark of the convention
        self._launcher, self._status = launcher, status
        self._lock = threading.Lock()
        self._recording: _Recording | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Replays the program on the current stream; captures it first where it must."""
        if self._status.reason is not None:
            return self._launcher(args)
        with self._lock:
            given, static = self._launcher.split(args)
            if self._recording is None or not self._recording.fits(static):
                try:
                    # not inference tensors: a call outside of inference mode must copy into them
                    with torch.inference_mode(False), torch.no_grad():
                        self._recording = _Recording(self._launcher, given, static)
                except RuntimeError as error:
                    return self._give_up(args, error)
                self._status.frozen = True
            args.clear()
            return self._recording.replay(given)

    def _give_up(self, args: list[Any], error: RuntimeError) -> Sequence[Any]:
        self._recording = None
        self._status.frozen, self._status.reason = False, f"capture failed: {error}"
        name = self._launcher.graph.name
        warnings.warn(f"{name} is not frozen: {self._status.reason}", NimbleWarning, stacklevel=2)
        return self._launcher(args)


class _Recording:
    """One capture: the memory that it was recorded with, and how to feed and read it."""

    def __init__(self, launcher: Launcher, given: list[Any], static: list[Any]) -> None:
        self._static, self._pointers = static, _pointers(static)
        self._buffers = [_buffer_like(value) for value in given]
        written = {storage for task in launcher.graph.tasks for storage in task.writes}
        mutated = [not written.isdisjoint(value.holds) for value in launcher.graph.inputs]
        self._mutated = [k for k, i in enumerate(launcher.given) if mutated[i]]

        def run(streams: tuple[Stream, ...]) -> Sequence[Any]:
            return launcher.enqueue(list(self._buffers), static, streams)

        with _undone([static[k] for k, i in enumerate(launcher.static) if mutated[i]]):
            for _ in range(WARM_UPS):
                self._copy_in(given)
                launcher.device.warm_up(launcher.loaded.n_streams, run)
        self._capture = launcher.device.capture(launcher.loaded.n_streams, run)
        self._owners = self._find_owners()

    def fits(self, static: list[Any]) -> bool:
        """Whether the parameters and buffers are still where they were."""
        return _pointers(static) == self._pointers

    def replay(self, given: list[Any]) -> list[Any]:
        """Runs the capture on new inputs; the outputs are the caller's to keep."""
        self._copy_in(given)
        self._capture.replay()
        for k in self._mutated:
            given[k].copy_(self._buffers[k])
        return self._copy_out(given)

    def _copy_in(self, given: list[Any]) -> None:
        if given:
            torch._foreach_copy_(self._buffers, given)

    def _find_owners(self) -> list[int | None]:
        """For each output, the address of its storage; None if it is ours to hand out as it is."""
        lasting = {_address(value) for value in self._static}
        return [
            _address(value)
            if isinstance(value, torch.Tensor) and _address(value) not in lasting
            else None
            for value in self._capture.outputs
        ]

    def _copy_out(self, given: list[Any]) -> list[Any]:
        """The outputs in memory that no replay writes; what shared a storage shares one again."""
        callers = {_address(b): g for b, g in zip(self._buffers, given, strict=True)}
        copies: dict[int, torch.UntypedStorage] = {}
        outputs: list[Any] = []
        for value, owner in zip(self._capture.outputs, self._owners, strict=True):
            if owner is None:
                outputs.append(value)
            elif owner in callers:
                outputs.append(_same_view(value, callers[owner]))
            else:
                if owner not in copies:
                    copies[owner] = value.untyped_storage().clone()
                copy = value.new_empty(0).set_(
                    copies[owner], value.storage_offset(), value.shape, value.stride()
                )
                outputs.append(copy)
        return outputs


@contextmanager
def _undone(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Gives tensors back the values that they had before the block, however it ends."""
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)


def _pointers(tensors: list[Any]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _buffer_like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _same_view(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The view of `base` that `value` is of our copy of `base`."""
    offset = base.storage_offset() + value.storage_offset()
    return base.as_strided(value.shape, value.stride(), offset)
