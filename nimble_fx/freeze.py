"""When a program is captured, which of its captures a call replays, and when it runs unfrozen."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nimble_fx import garbage
from nimble_fx.devices import Device
from nimble_fx.errors import StateError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter, count
from nimble_fx.ir import ScalarType, Task, TaskGraph
from nimble_fx.launch import Launcher
from nimble_fx.recording import Recording

CAPTURES_PER_GRAPH = 4
"""A program is captured at most so many times for each graph that it may keep."""

_NOT_FROZEN_TAGS = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.cudagraph_unsafe,
}


@dataclass
class Status:
    """How a program runs at the moment.

    Attributes:
        frozen: whether there is a capture of it.
        reason: why not, or why some calls run unfrozen all the same.
        n_graphs: how many captures are kept.
        nbytes: the memory that these own, in bytes for each stream.
    """

    frozen: bool = False
    reason: str | None = None
    n_graphs: int = 0
    nbytes: tuple[int, ...] = field(default=())


def nothing_to_freeze(graph: TaskGraph, device: Device) -> str | None:
    """Why a capture would gain nothing; None if it would."""
    if not device.has_graphs:
        return f"{device.name} has no CUDA graphs"
    return None if graph.launching else "it launches nothing"


def refuse_what_cannot_be_captured(graph: TaskGraph, device: Device) -> None:
    """Looks for what cannot be captured, as far as the graph tells.

    Raises:
        UnsupportedError: it has an operator that waits for the device or whose result's size
            depends on data; or the device is set up so that it cannot capture.
    """
    if device.why_not_capture is not None:
        raise UnsupportedError(device.why_not_capture)
    for task in graph.tasks:
        tags = getattr(task.target, "tags", ())
        if not _NOT_FROZEN_TAGS.isdisjoint(tags):
            raise _refused(task, "cannot be captured: the host waits for its result")


class Frozen:
    """Runs a program from its captures, and makes them: one for each set of sizes and addresses.

    A capture is bound to the numbers among the inputs (the sizes, where they are symbolic) and to
    the addresses of the parameters. So a program that several modules share has several. Past
    `max_graphs` the one that was replayed least recently goes; after `CAPTURES_PER_GRAPH` times as
    many captures, calls for which there is none run unfrozen.
    """

    def __init__(
        self,
        launcher: Launcher,
        status: Status,
        reporter: Reporter,
        max_graphs: int = 8,
        copy_outputs: bool = True,
    ) -> None:
        self._boxed_call = True  # AOTAutograd's mark of the convention
        self._launcher, self._status, self._reporter = launcher, status, reporter
        self._max_graphs, self._copy_outputs = max_graphs, copy_outputs
        values = [launcher.graph.inputs[i] for i in launcher.given]
        self._numbers = [k for k, v in enumerate(values) if isinstance(v.type, ScalarType)]
        self._lock = threading.RLock()
        self._is_busy = False
        self._recordings: OrderedDict[tuple[Any, ...], Recording] = OrderedDict()
        self._n_captures = 0
        self._fallback: Fallback | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Replays the program on the current stream; captures it first where it must."""
        if self._launcher.device.is_capturing:
            return self._launcher(args)
        with self._lock:
            if self._is_busy:  # an operator of the program calls it: its buffers are in use
                return self._launcher(args)
            self._is_busy = True
            try:
                return self._run(args)
            finally:
                self._is_busy = False

    def _run(self, args: list[Any]) -> Sequence[Any]:
        """Replays the recording for the call; makes it first if there is none and may be one."""
        given, static = self._launcher.split(args)
        numbers = [given[k] for k in self._numbers]
        key = (*numbers, *[tensor.data_ptr() for tensor in static])
        recording = self._recordings.get(key)
        if recording is None:
            made = self._record(key, given, static)
            if isinstance(made, Fallback):
                return self._run_unfrozen(made, args)
            recording = made
        args.clear()
        self._recordings.move_to_end(key)
        return recording.replay(given)

    def _run_unfrozen(self, fallback: Fallback, args: list[Any]) -> Sequence[Any]:
        """Runs a call that has no recording, and captures no other from then on.

        If the call fails as its capture did, that is no reason: the error is the program's own.
        """
        outputs = self._launcher(args)
        self._fallback, self._status.reason = fallback, fallback.reason
        self._reporter.report(fallback)
        return outputs

    def _record(
        self, key: tuple[Any, ...], given: list[Any], static: list[Any]
    ) -> Recording | Fallback:
        """A new recording, unless there must be none or making it failed."""
        if self._fallback is not None:
            return self._fallback
        if self._n_captures >= self._max_captures:
            changes = f"sizes or addresses of parameters have changed {self._max_captures} times"
            return Fallback(self._name, "unfrozen", changes)
        self._make_room()
        try:
            recording = self._capture(given, static)
        except StateError:
            raise
        except Exception as error:
            return _failure(self._launcher, error)
        self._recordings[key] = recording
        self._n_captures += 1
        count("captures")
        self._note_graphs()
        return recording

    def _capture(self, given: list[Any], static: list[Any]) -> Recording:
        # no inference tensors: calls outside of inference mode must be able to copy into them
        with (
            garbage.paused(),
            self._launcher.device.exclusive(),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            return Recording(self._launcher, given, static, self._copy_outputs)

    def _make_room(self) -> None:
        """Drops the recordings that were replayed least recently; the first time with a warning."""
        while len(self._recordings) >= self._max_graphs:
            if self._n_captures == self._max_graphs:
                self._reporter.warn(
                    f"{self._name} is called with more than {self._max_graphs} sets of sizes and "
                    "parameters: the graph that was used least recently is dropped for each new "
                    "one. Pad inputs to a few sizes, or raise the option max_graphs"
                )
            self._recordings.popitem(last=False)
            count("evictions")

    def _note_graphs(self) -> None:
        status, kept = self._status, list(self._recordings.values())
        status.frozen, status.n_graphs = bool(kept), len(kept)
        by_graph = [recording.nbytes for recording in kept]
        status.nbytes = tuple(map(sum, zip(*by_graph, strict=True)))

    @property
    def _max_captures(self) -> int:
        return CAPTURES_PER_GRAPH * self._max_graphs

    @property
    def _name(self) -> str:
        return self._launcher.graph.name


def _failure(launcher: Launcher, error: Exception) -> Fallback:
    """What to say of a capture that failed. It keeps no frame of it, nor the memory of these."""
    task = launcher.task_of(error)
    while task is None and isinstance(error.__context__, Exception):
        error = error.__context__  # ending a broken capture raises an error of its own
        task = launcher.task_of(error)
    name, reason = launcher.graph.name, f"capture failed: {error}"
    if task is None:
        return Fallback(name, "unfrozen", reason)
    return Fallback(name, "unfrozen", f"{reason} [{_place(task)}]", task.name, task.source)


def _refused(task: Task, why: str) -> UnsupportedError:
    return UnsupportedError(f"{_place(task)} {why}", task.name, task.source)


def _place(task: Task) -> str:
    source = task.source
    line = f"{source}: {source.code}" if source else "no line of the model is recorded for it"
    return f"{task.name} ({task.target}), {line}"
