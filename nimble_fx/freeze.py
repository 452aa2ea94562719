"""When a program is captured, which of its captures a call replays, and when it runs unfrozen."""

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from nimble_fx import garbage
from nimble_fx.arena import Arena
from nimble_fx.devices import Device
from nimble_fx.errors import StateError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter, count
from nimble_fx.ir import ScalarType, Task, TaskGraph
from nimble_fx.launch import Launcher
from nimble_fx.recording import Handing, Recording

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
        n_captures: how many times it was captured.
        n_graphs: how many of these captures are kept.
        nbytes: the memory that these own, in bytes for each stream.
    """

    frozen: bool = False
    reason: str | None = None
    n_captures: int = 0
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
            why = _described(task, "cannot be captured: the host waits for its result")
            raise UnsupportedError(why, task.name, task.source)


@dataclass(frozen=True)
class Key:
    """What a capture is bound to.

    Attributes:
        numbers: the numbers among the inputs.
        static: the addresses of the parameters.
        fixed: which of the other inputs are read where a forward left them, and where that is.
        saves_in_place: whether what is saved for the backward stays in the capture's memory.
    """

    numbers: tuple[Any, ...]
    static: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    saves_in_place: bool = True


@dataclass(frozen=True)
class Terms:
    """On which terms a program's captures and their callers share memory.

    Attributes:
        max_graphs: how many captures are kept.
        copy_outputs: whether what the user sees is copied out of the memory of the capture.
        n_seen: how many outputs the user sees, if not all: a forward saves the others.
        is_backward: whether it reads what a forward saved. Its results are gradients, which
            autograd may keep and add to: they are copied whatever the user chose.
    """

    max_graphs: int = 8
    copy_outputs: bool = True
    n_seen: int | None = None
    is_backward: bool = False

    def handing(self, n_outputs: int, saves_in_place: bool) -> Handing:
        """How the outputs of a capture are handed out."""
        n_seen = n_outputs if self.n_seen is None else self.n_seen
        lent = range(0 if self.copy_outputs or self.is_backward else n_seen)
        return Handing(lent, saved=range(n_seen, n_outputs if saves_in_place else n_seen))


class Frozen:
    """Runs a program from its captures, and makes them: one for each set of sizes and addresses.

    A capture is bound to the numbers among the inputs (the sizes, where they are symbolic) and to
    the addresses of the parameters. So a program that several modules share has several. Past
    `max_graphs` the one that was replayed least recently goes; after `CAPTURES_PER_GRAPH` times as
    many captures, calls for which there is none run unfrozen.

    What a forward saves for its backward stays in the memory of the capture, and the backward reads
    it there. While a backward is still to come, another capture serves the next forward, one that
    copies what it saves.
    """

    def __init__(
        self,
        launcher: Launcher,
        arena: Arena,
        status: Status,
        reporter: Reporter,
        terms: Terms,
    ) -> None:
        self._boxed_call = True  # AOTAutograd's mark of the convention
        self._launcher, self._arena, self._terms = launcher, arena, terms
        self._status, self._reporter = status, reporter
        values = [launcher.graph.inputs[i] for i in launcher.given]
        self._numbers = [k for k, v in enumerate(values) if isinstance(v.type, ScalarType)]
        written = {*self._numbers, *launcher.mutated_given}
        self._readable = [k for k in range(len(values)) if k not in written]
        self._recordings: OrderedDict[Key, Recording] = OrderedDict()
        self._fallback: Fallback | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Replays the program on the current stream; captures it first where it must."""
        if self._launcher.device.is_capturing:
            return self._launcher(args)
        arena = self._arena
        with arena.lock:
            if arena.is_busy:  # an operator of the program calls it: its buffers are in use
                return self._launcher(args)
            arena.is_busy = True
            try:
                return self._run(args)
            finally:
                arena.is_busy = False

    def forget(self, key: Key) -> None:
        """Drops a recording, if there is one."""
        recording = self._recordings.pop(key, None)
        if recording is not None:
            self._arena.saved -= recording.saved_addresses
            self._note_graphs()
            garbage.hold(recording)

    def _run(self, args: list[Any]) -> Sequence[Any]:
        """Replays the recording for the call; makes it first if there is none and may be one."""
        given, static = self._launcher.split(args)
        key = self._key(given, static)
        recording = self._recordings.get(key)
        if recording is not None and recording.is_in_use:
            key = replace(key, saves_in_place=False)
            recording = self._recordings.get(key)
        if recording is None:
            made = self._record(key, given, static)
            if isinstance(made, Fallback):
                return self._run_unfrozen(made, args)
            recording = made
        args.clear()
        self._recordings.move_to_end(key)
        return recording.replay(given, static)

    def _key(self, given: list[Any], static: list[Any]) -> Key:
        fixed: tuple[tuple[int, int], ...] = ()
        if self._terms.is_backward:
            saved = self._arena.saved
            places = [(k, given[k].data_ptr()) for k in self._readable]
            fixed = tuple([place for place in places if place[1] in saved])
        numbers = tuple([given[k] for k in self._numbers])
        return Key(numbers, tuple([tensor.data_ptr() for tensor in static]), fixed)

    def _run_unfrozen(self, fallback: Fallback, args: list[Any]) -> Sequence[Any]:
        """Runs a call that has no recording, and captures no other from then on.

        If the call fails as its capture did, that is no reason: the error is the program's own.
        """
        outputs = self._launcher(args)
        self._fallback, self._status.reason = fallback, fallback.reason
        self._reporter.report(fallback)
        return outputs

    def _record(self, key: Key, given: list[Any], static: list[Any]) -> Recording | Fallback:
        """A new recording, unless there must be none or making it failed."""
        if self._fallback is not None:
            return self._fallback
        limit = CAPTURES_PER_GRAPH * self._terms.max_graphs
        if self._status.n_captures >= limit:
            reason = f"sizes or addresses of parameters have changed {limit} times"
            return Fallback(self._name, "unfrozen", reason)
        self._make_room()
        try:
            recording = self._capture(key, given, static)
        except StateError:
            raise
        except Exception as error:
            return _failure(self._launcher, error)
        self._recordings[key] = recording
        recording.when_memory_goes(given, static, partial(_forget, weakref.ref(self), key))
        self._arena.saved |= recording.saved_addresses
        self._status.n_captures += 1
        count("captures")
        self._note_graphs()
        return recording

    def _capture(self, key: Key, given: list[Any], static: list[Any]) -> Recording:
        fixed = [k for k, _ in key.fixed]
        handing = self._terms.handing(len(self._launcher.graph.outputs), key.saves_in_place)
        # no inference tensors: calls outside of inference mode must be able to copy into them
        with (
            garbage.paused(),
            self._launcher.device.exclusive(),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            return Recording(self._launcher, self._arena, given, static, fixed, handing)

    def _make_room(self) -> None:
        """Drops the recordings that were replayed least recently; the first time with a warning."""
        max_graphs = self._terms.max_graphs
        while len(self._recordings) >= max_graphs:
            if self._status.n_captures == max_graphs:
                self._reporter.warn(
                    f"{self._name} is called with more than {max_graphs} sets of sizes and "
                    "parameters: the graph that was used least recently is dropped for each new "
                    "one. Pad inputs to a few sizes, or raise the option max_graphs"
                )
            self.forget(next(iter(self._recordings)))
            count("evictions")

    def _note_graphs(self) -> None:
        status, kept = self._status, list(self._recordings.values())
        status.frozen, status.n_graphs = bool(kept), len(kept)
        status.nbytes = kept[-1].nbytes if kept else ()

    @property
    def _name(self) -> str:
        return self._launcher.graph.name


def _forget(program: "weakref.ref[Frozen]", key: Key, _: object) -> None:
    """Drops a recording of a program that may be gone itself."""
    frozen = program()
    if frozen is not None:
        frozen.forget(key)


def _failure(launcher: Launcher, error: Exception) -> Fallback:
    """What to say of a capture that failed. It keeps no frame of it, nor the memory of these."""
    task = launcher.task_of(error)
    name, reason = launcher.graph.name, f"capture failed: {error}"
    if task is None:
        return Fallback(name, "unfrozen", reason)
    reason = f"capture failed at {_described(task, str(error))}"
    return Fallback(name, "unfrozen", reason, task.name, task.source)


def _described(task: Task, what: str) -> str:
    source = task.source
    line = f"{source}: {source.code}" if source else "no line of the model is recorded for it"
    return f"{task.name} ({task.target}): {what} [{line}]"
