"""Runs a loaded module without a CUDA graph: each call launches its tasks.

The calling convention is AOTAutograd's boxed one: a call takes a list of inputs, in the graph's
order, and empties it, so that inputs can be freed while the program runs.
"""

import linecache
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

import torch

from nimble_fx.codegen.emit import task_of_line
from nimble_fx.codegen.load import LoadedModule
from nimble_fx.devices import DeviceRuntime, Stream
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.runtime.attention_seeds import seed_inputs, with_seeds_on
from nimble_fx.runtime.items_at import items_at
from nimble_fx.runtime.shared_memory import SharedMemory
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.fake_tensors import like
from nimble_fx.torch_internals.forward_ad import carry_tangents
from nimble_fx.torch_internals.names import DisableTorchFunction
from nimble_fx.torch_internals.operators import is_kernel

HOST = torch.device("cpu")


@dataclass(frozen=True)
class AsTraced:
    """Runs the calls for which a program would be wrong.

    Attributes:
        run: the ATen graph, operator by operator in the order of the trace.
        report_shared: called with the names of two inputs that share memory which the program
            writes, and did not when it was traced.
    """

    run: Boxed
    report_shared: Callable[[str, str], None]


def loses_tangents(graph: TaskGraph, device: DeviceRuntime) -> bool:
    """Whether a program computes no tangents, or wrong ones.

    Kernels of Inductor and of users compute none; the virtual device computes wrong ones where an
    operator takes a Python number.
    """
    return isinstance(device, Virtual) or any(is_kernel(task.target) for task in graph.tasks)


@boxed
class Launcher:
    """Runs a program unfrozen: each call launches its tasks on the device's streams.

    Attributes:
        inputs, static: the positions among the arguments of inputs, and of parameters and buffers.
        mutated_inputs, mutated_static: the positions among these of tensors that it writes to.
        shared_memory, shared_static: find arguments, or parameters and buffers, that share memory
            which the program writes, and did not when it was traced.
        seeds: the positions among inputs of the seeds that attention operators read on the host,
            unless they are captured; see `attention_seeds`.
    """

    def __init__(
        self,
        graph: TaskGraph,
        loaded: LoadedModule,
        constants: Mapping[str, torch.Tensor],
        device: DeviceRuntime,
        as_traced: AsTraced | None = None,
    ) -> None:
        """A loaded module with its graph.

        Args:
            graph: the scheduled graph.
            loaded: its module.
            constants: the values of the graph's constants by name.
            device: runs it.
            as_traced: runs calls whose inputs share memory that it writes and did not when it was
                traced, or carry tangents that it would lose; None if there are no such calls.
        """
        self.graph, self.loaded, self.device = graph, loaded, device
        self._constants = [constants[value.name] for value in graph.constants]
        self.inputs = [i for i, value in enumerate(graph.inputs) if not value.static]
        self.static = [i for i, value in enumerate(graph.inputs) if value.static]
        written = written_inputs(graph)
        mutated = [value.name in written for value in graph.inputs]
        self._as_traced = as_traced
        self._loses_tangents = loses_tangents(graph, device)
        self.shared_memory = SharedMemory.of(graph)
        self.shared_static = SharedMemory.of(graph, self.static)
        self._pick_inputs, self._pick_static = items_at(self.inputs), items_at(self.static)
        seeds = seed_inputs(graph)
        self.seeds = [k for k, i in enumerate(self.inputs) if graph.inputs[i].name in seeds]
        self.mutated_inputs = [k for k, i in enumerate(self.inputs) if mutated[i]]
        self.mutated_static = [k for k, i in enumerate(self.static) if mutated[i]]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Enqueues the program on the current stream and side streams; empties `args`."""
        if self._as_traced is not None and self._is_for_trace(args, self._as_traced):
            return self._as_traced.run(args)
        inputs, static = list(self._pick_inputs(args)), self._pick_static(args)
        args.clear()
        if self.seeds and not self.device.is_capturing:
            inputs = with_seeds_on(HOST, inputs, self.seeds)
        outputs: Sequence[Any] = ()
        is_nested = self.device.exclusive().is_held_here
        with self.device.exclusive():
            streams = self._streams(is_nested)
            try:
                outputs = self.enqueue(inputs, static, streams)
            finally:
                self.device.settle(streams, outputs)
        return outputs

    def _is_for_trace(self, args: Sequence[Any], as_traced: AsTraced) -> bool:
        """Whether the call must run as traced; reports inputs that share memory."""
        if self._loses_tangents and carry_tangents(args):
            return True
        shared = self.shared_memory.found(args)
        if shared is not None:
            as_traced.report_shared(*shared)
        return shared is not None

    def _streams(self, is_nested: bool) -> tuple[Stream, ...]:
        """The streams of a call.

        Args:
            is_nested: whether an operator of another program makes the call. Then all tasks run on
                the operator's stream, because the side streams may be in use by that program, which
                frees memory without regard to this one.
        """
        n = self.loaded.n_streams
        return self.device.streams(1) * n if is_nested else self.device.streams(n)

    def split(self, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Splits the arguments of a call into inputs, and parameters and buffers."""
        return self._pick_inputs(args), self._pick_static(args)

    def joined(self, inputs: Sequence[Any], static: Sequence[Any]) -> list[Any]:
        """The arguments of a call that `split` splits into these."""
        by_position = dict(zip((*self.inputs, *self.static), (*inputs, *static), strict=True))
        return [by_position[i] for i in range(len(by_position))]

    @property
    def mutates(self) -> bool:
        """Whether it writes to any of its arguments."""
        return bool(self.mutated_inputs or self.mutated_static)

    def failing_task(self, error: BaseException) -> Task | None:
        """The task whose line in the module raised an error; None if that is not known."""
        frames = walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code is self.loaded.call.__code__]
        if not lines:
            return None
        text = linecache.getline(self.loaded.call.__code__.co_filename, lines[-1])
        return task_of_line(self.graph, text.strip())

    def enqueue(
        self, inputs: list[Any], static: Sequence[Any], streams: tuple[Stream, ...]
    ) -> Sequence[Any]:
        """Enqueues the program once; empties `inputs`.

        Raises:
            Exception: any error of an operator, with a note of the user's line.
        """
        parameters = SimpleNamespace()
        values = (*static, *like(self._constants, (*inputs, *static)))
        parameters.__dict__.update(zip(self.loaded.parameters, values, strict=True))
        events = self.device.events(self.loaded.events)
        try:
            with DisableTorchFunction():  # modes and subclasses took effect when it was traced
                return self.loaded.call(inputs, parameters, streams, events)
        except Exception as error:
            task = self.failing_task(error)
            if task is not None and task.source is not None:
                where = f"{task.name} of {self.graph.name}, {task.source}"
                note = f"This was in {where}: {task.source.code}"
                # a frozen exception takes no notes, and a reraised one already has it
                with suppress(AttributeError, TypeError):
                    if note not in getattr(error, "__notes__", ()):
                        error.add_note(note)
            raise
