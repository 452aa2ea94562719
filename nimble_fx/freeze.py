"""How a program is captured once and replayed: warm-up, static inputs, outputs of one's own."""

import threading
import warnings
from collections import OrderedDict
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

MAX_RECORDINGS = 8
"""Captures kept at a time, for as many sets of parameter addresses."""

MAX_CAPTURES = 32
"""Captures in all, after which the program runs unfrozen."""

_NOT_FROZEN_TAGS = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.cudagraph_unsafe,
}


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
            return f"{task.name} ({task.target}) cannot be captured [{task.source}]"
    return None


class Frozen:
    """Runs a program from its captures: copies what is new in, replays, copies results out.

    A capture is bound to the addresses of the parameters. There is one for each set of addresses
    that is in use: a program that several modules share has several.
    """

    def __init__(self, launcher: Launcher, status: Status) -> None:
        self._boxed_call = True  # AOTAutograd's mark of the convention
        self._launcher, self._status = launcher, status
        self._lock = threading.RLock()
        self._is_busy = False
        self._recordings: OrderedDict[tuple[int, ...], _Recording] = OrderedDict()
        self._n_captures = 0

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Replays the program on the current stream; captures it first where it must."""
        if self._status.reason is not None or self._launcher.device.is_capturing:
            return self._launcher(args)
        with self._lock:
            if self._is_busy:  # an operator of the program calls it: its buffers are in use
                return self._launcher(args)
            self._is_busy = True
            try:
                return self._replay(args)
            finally:
                self._is_busy = False

    def _replay(self, args: list[Any]) -> Sequence[Any]:
        """Replays the recording for the parameters' addresses; makes it first if there is none."""
        given, static = self._launcher.split(args)
        addresses = tuple([tensor.data_ptr() for tensor in static])
        if addresses not in self._recordings:
            if self._n_captures == MAX_CAPTURES:
                return self._give_up(args, f"parameters moved after {MAX_CAPTURES} captures")
            try:
                self._record(addresses, given, static)
            except RuntimeError as error:
                return self._give_up(args, f"capture failed: {error}")
        args.clear()
        self._recordings.move_to_end(addresses)
        return self._recordings[addresses].replay(given)

    def _record(self, addresses: tuple[int, ...], given: list[Any], static: list[Any]) -> None:
        self._n_captures += 1
        while len(self._recordings) >= MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        # no inference tensors: calls outside of inference mode must be able to copy into them
        with self._launcher.device.exclusive(), torch.inference_mode(False), torch.no_grad():
            self._recordings[addresses] = _Recording(self._launcher, given, static)
        self._status.frozen = True

    def _give_up(self, args: list[Any], reason: str) -> Sequence[Any]:
        self._recordings.clear()
        self._status.frozen, self._status.reason = False, reason
        name = self._launcher.graph.name
        warnings.warn(f"{name} is not frozen: {reason}", NimbleWarning, stacklevel=2)
        return self._launcher(args)


class _Recording:
    """One capture: the memory that it was recorded with, and how to feed and read it."""

    def __init__(self, launcher: Launcher, given: list[Any], static: list[Any]) -> None:
        self._device, n = launcher.device, launcher.loaded.n_streams
        self._static = static  # their addresses are in the capture
        self._done = self._device.events(("replay",)).replay
        self._buffers = [_buffer_like(value) for value in given]
        written = {storage for task in launcher.graph.tasks for storage in task.writes}
        mutated = [not written.isdisjoint(value.holds) for value in launcher.graph.inputs]
        self._mutated = [k for k, i in enumerate(launcher.given) if mutated[i]]

        def run(streams: tuple[Stream, ...]) -> Sequence[Any]:
            return launcher.enqueue(list(self._buffers), static, streams)

        with _undone([static[k] for k, i in enumerate(launcher.static) if mutated[i]]):
            for _ in range(WARM_UPS):
                self._copy_in(given)
                self._device.warm_up(n, run)
        self._capture = self._device.capture(n, run)

    def replay(self, given: list[Any]) -> list[Any]:
        """Runs the capture on new inputs; the outputs are the caller's to keep."""
        (caller,) = self._device.streams(1)
        caller.wait_event(self._done)  # the last replay may have been on another stream
        self._copy_in(given)
        self._capture.replay()
        for k in self._mutated:
            given[k].copy_(self._buffers[k])
        outputs = self._copy_out(given)
        self._done.record(caller)
        return outputs

    def _copy_in(self, given: list[Any]) -> None:
        if given:
            torch._foreach_copy_(self._buffers, given)

    def _copy_out(self, given: list[Any]) -> list[Any]:
        """The outputs in memory that no replay writes.

        Parameters and their views are handed out as they are; views of inputs become views of the
        caller's. Of each other storage one copy is made, and what shared it shares the copy, so
        that writing to one output is seen in the others, and by autograd.
        """
        callers = {_storage(b): g for b, g in zip(self._buffers, given, strict=True)}
        ours = {_storage(value) for value in self._static}
        copies: dict[int, torch.Tensor] = {}
        handed: dict[int, Any] = {}
        for value in self._capture.outputs:
            if id(value) in handed:
                continue
            if not isinstance(value, torch.Tensor) or (storage := _storage(value)) in ours:
                handed[id(value)] = value
            elif storage in callers:
                base = callers[storage]
                handed[id(value)] = _view(base, value, shift=base.storage_offset())
            elif storage in copies:
                handed[id(value)] = _view(copies[storage], value)
            else:
                handed[id(value)] = copies[storage] = _copy_of(value)
        return [handed[id(value)] for value in self._capture.outputs]


@contextmanager
def _undone(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Gives tensors back the values that they had before the block, however it ends."""
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)


def _storage(tensor: torch.Tensor) -> int:
    """What tells storages apart; not the address, which all empty ones share."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _buffer_like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same geometry on a copy of the whole storage."""
    storage = value.untyped_storage().clone()  # type: ignore[no-untyped-call]
    bare = _bare(value).set_(storage, value.storage_offset(), value.shape, value.stride())
    return _read_as(value, bare)


def _view(base: torch.Tensor, value: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """The view of `base` that has `value`'s geometry, `shift` elements further on."""
    same_kind = (base.dtype, base.is_conj(), base.is_neg()) == (value.dtype, False, False)
    if same_kind and not (value.is_conj() or value.is_neg()):
        return base.as_strided(value.shape, value.stride(), shift + value.storage_offset())
    shift = shift * base.itemsize // value.itemsize
    whole = _bare(value).set_(base.untyped_storage())
    bare = whole.as_strided(value.shape, value.stride(), shift + value.storage_offset())
    return _read_as(value, bare)


def _bare(value: torch.Tensor) -> torch.Tensor:
    """An empty tensor of the same type, which is read as it is stored."""
    return torch.empty(0, dtype=value.dtype, device=value.device)


def _read_as(value: torch.Tensor, bare: torch.Tensor) -> torch.Tensor:
    """`bare`, read with the signs and conjugates that reading `value` adds to what is stored."""
    bare = torch._neg_view(bare) if value.is_neg() else bare
    return torch._conj(bare) if value.is_conj() else bare
