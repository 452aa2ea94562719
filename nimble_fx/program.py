"""`Program`, the user's view of a compiled graph, and the list of all programs."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from torch import Tensor, nn

from nimble_fx import serialization
from nimble_fx.codegen.load import load
from nimble_fx.devices import DeviceRuntime, device_here
from nimble_fx.devices.specs import Device
from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.fallback import Reporter
from nimble_fx.ir.display import plural
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.symbolic_sizes import Sizes
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.program_summary import described_inputs, summary
from nimble_fx.rewrites.kernel_registry import kernel_source
from nimble_fx.runtime.bound_program import BoundProgram
from nimble_fx.runtime.capture.autotuning import Autotuner, AutotuneResult
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.checks import NOT_FROZEN, why_not_captured
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.fastest import KernelChoice
from nimble_fx.runtime.launch import AsTraced, Launcher
from nimble_fx.selection.candidate import Candidate
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.operators import is_kernel
from nimble_fx.verify import verify, verify_source
from nimble_fx.weak_list import WeakList


@dataclass(eq=False)
class Program:
    """A compiled program: one forward, backward or inference graph of a model.

    With `policy="auto"` on a GPU its schedule is the best one by prediction until the first capture
    has autotuned several; from then on it is the fastest.

    Attributes:
        scheduled: the schedule that it runs by, and the text emitted for it.
        status: whether it is frozen, and if not, why not.
        specs: the device that it was scheduled for; None for a program from a file.
        candidates: the schedules that "auto" selected from, the best by prediction first; empty
            with another policy, and for a program from a file.
        alternatives: other schedules that autotuning times at the first capture.
        on_winner: called with the fastest schedule after autotuning.
        kernel_choice: which kernels were compiled for it, and their times in the first call; None
            for a program from a file.
        n_traced: how many operators PyTorch traced; None for a program from a file.
        may_freeze: the option `freeze`; True for a program from a file.
    """

    scheduled: ScheduledProgram
    status: CaptureStatus
    specs: Device | None = field(default=None, repr=False)
    candidates: tuple[Candidate, ...] = ()
    alternatives: tuple[ScheduledProgram, ...] = field(default=(), repr=False)
    on_winner: Callable[[ScheduledProgram], None] | None = field(default=None, repr=False)
    kernel_choice: KernelChoice | None = field(default=None, repr=False)
    n_traced: int | None = field(default=None, repr=False)
    may_freeze: bool = field(default=True, repr=False)

    @property
    def name(self) -> str:
        """Its name, such as "Branchy.forward"."""
        return self.graph.name

    @property
    def graph(self) -> TaskGraph:
        """The scheduled task graph."""
        return self.scheduled.graph

    @property
    def source(self) -> str:
        """The text of the emitted module."""
        return self.scheduled.source

    @property
    def path(self) -> Path | None:
        """The file that the text was written to; None if it is in memory only."""
        return self.scheduled.path

    @property
    def file(self) -> str:
        """The file name that tracebacks show for the module."""
        return self.scheduled.file

    @property
    def device(self) -> str:
        """The name of the device that it runs on."""
        return self.scheduled.device

    @property
    def hardware(self) -> str:
        """The model of the device, such as a GPU's name; "" for any model."""
        return self.scheduled.hardware

    @property
    def constants(self) -> Mapping[str, Tensor]:
        """The values of the graph's constants by name."""
        return self.scheduled.constants

    @property
    def parameters(self) -> Mapping[str, str]:
        """The model's name of each parameter and buffer, by its name in the graph.

        Such as "layers.0.weight" by "layers_0_weight".
        """
        return self.scheduled.parameters

    @property
    def sizes(self) -> Sizes:
        """The symbolic sizes of its inputs, with their values at compile time."""
        return self.scheduled.sizes

    def kernel_source(self, name: str) -> str:
        """The text of a kernel that Inductor compiled (C++ or Triton), or that the model launches.

        Args:
            name: a task of the graph, such as "cpp_fused_relu_0".

        Raises:
            InputError: there is no such task; the message lists the tasks that there are.
        """
        kernels = {
            task.name: task.target.__name__.partition(".")[0]
            for task in self.graph.tasks
            if is_kernel(task.target)
        }
        source = kernel_source(kernels.get(name, ""))
        if source is None:
            known = ", ".join(kernels) or "none; compile with options={'kernels': 'inductor'}"
            raise InputError(f"{self.name} has no kernel {name!r:.99}; its kernels: {known}")
        return source

    def verify(self) -> None:
        """Proves again that the schedule is legal and that the source is that schedule.

        Raises:
            ScheduleError: one of them does not hold.
        """
        verify(self.graph)
        verify_source(self.source, self.graph)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Saves the program to a file that `nimble_fx.load` reads; returns its absolute path.

        The file is JSON; it has the graph, the constants and the emitted text, and no parameters.
        The same program gives the same file.

        Args:
            path: the file, which is written atomically; missing directories are made.

        Raises:
            FileError: it cannot be written, or a value in the program cannot be serialized.
        """
        target = serialization.absolute(path)
        serialization.check_sizes(self.graph)
        serialization.write(target, serialization.encode(self.scheduled))
        return target

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses to be pickled or copied.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"the program {self.name} cannot be pickled or copied: it holds code and captures of "
            "this process. Save it with .save(file), and read that with nimble_fx.load(file)"
        )

    def bind(self, parameters: nn.Module | Mapping[str, Tensor]) -> BoundProgram:
        """A callable that runs the program with these parameters, frozen if the device can.

        The callable takes the graph's other inputs in order (those in `graph.inputs` that are
        neither static nor sizes of other inputs) and returns a list of its outputs. There are no
        guards, gradients or pytrees: the inputs must have the types that the graph was traced
        with. The tensors that a forward graph saves for its backward are among its outputs. It
        keeps `freeze` of the compile's options, and has the defaults of `copy_outputs`,
        `max_graphs` and `on_fallback`.

        Args:
            parameters: a module, or tensors by name: the model's names or the graph's.

        Raises:
            InputError: a parameter is missing or does not fit the program. The callable raises it
                for an input that does not fit.
            UnsupportedError: this machine has no such device.
        """
        device = device_here(self.device)
        reason = why_not_captured(self.graph, device) if self.may_freeze else NOT_FROZEN
        copy = replace(self, status=CaptureStatus(reason))
        run = copy.runner(device, PoolGroup(device), Reporter(), CaptureOptions(are_guarded=False))
        return BoundProgram(self.scheduled, parameters, device, run, copy.status)

    def runner(
        self,
        device: DeviceRuntime,
        pool_group: PoolGroup,
        reporter: Reporter,
        capture: CaptureOptions,
        as_traced: AsTraced | None = None,
    ) -> Boxed:
        """Loads it and returns its callable, captured unless `status` has a reason not to.

        Args:
            device: the device that runs it.
            pool_group: the group that it shares with its forward or backward.
            reporter: lists fallbacks.
            capture: how captures and callers share memory.
            as_traced: see `Launcher`.
        """
        schedules = (self.scheduled, *self.alternatives)
        launchers = [
            Launcher(each.graph, load(each.source, each.file), each.constants, device, as_traced)
            for each in schedules
        ]
        if self.status.reason is not None:
            return pool_group.ordered(launchers[0]) if capture.is_backward else launchers[0]

        def on_result(result: AutotuneResult) -> None:
            self._use_winner(schedules[result.winner], result)

        return FrozenProgram(
            launchers[0],
            pool_group,
            self.status,
            reporter,
            capture,
            Autotuner(launchers, on_result) if len(launchers) > 1 else None,
            self.scheduled.parameters,
        )

    def _use_winner(self, winner: ScheduledProgram, result: AutotuneResult) -> None:
        """Switches to the winner of autotuning, and adds the measured times to the candidates."""
        self.scheduled, self.alternatives = winner, ()
        measured = (*result.times, *[None] * (len(self.candidates) - len(result.times)))
        self.candidates = tuple(
            replace(each, measured_us=us, chosen=i == result.winner)
            for i, (each, us) in enumerate(zip(self.candidates, measured, strict=True))
        )
        if self.on_winner is not None:
            self.on_winner(winner)

    def summary(self) -> str:
        """A text of one screen: tasks, streams, waits, frees, device, and why it is not frozen."""
        return summary(
            self.scheduled, self.status, self.kernel_choice, self.n_traced, self.candidates
        )

    def __repr__(self) -> str:
        streams = plural(self.graph.n_streams, "stream")
        return f"<Program {self.name} of {described_inputs(self.graph)}: {streams}, {self.device}>"


_programs: WeakList[Program] = WeakList()


def programs() -> tuple[Program, ...]:
    """The programs that were compiled in this process and can still run, oldest first.

    `torch.compiler.reset()` empties the list.
    """
    return _programs.all()


def register(program: Program) -> None:
    """Adds a program to the list that `programs` returns; the list does not keep it alive."""
    _programs.add(program)


def clear_programs() -> None:
    """Empties the list that `programs` returns. Compiled models keep working."""
    _programs.clear()
