"""Compiles one ATen graph to a program: traces it, and selects its schedule."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch.fx import GraphModule

from nimble_fx.errors import FallbackError, ScheduleError, UnsupportedError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.options import Options
from nimble_fx.pipeline import schedule, traced_graph_passes
from nimble_fx.program import Program
from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from nimble_fx.runtime.capture import gc_guard
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.fastest import KernelChoice
from nimble_fx.selection.select import select_schedules
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.serialization.atomic_write import write_atomically
from nimble_fx.serialization.document import absolute
from nimble_fx.target import Target
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.tracing.aot_metadata import size_hints
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.tracing.user_names import InputNames
from nimble_fx.verify import verify_contents

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GraphCompiler:
    """Makes the programs of one ATen graph, one for each kind of kernels.

    Attributes:
        options: the user's options.
        target: what the graph is compiled for.
        inputs: the user's names of its inputs.
        name: the programs' name.
        capture: how their captures and callers share memory.
        n_traced: how many operators PyTorch traced.
        choice: which kinds of kernels the graph has, and which of them runs.
        folded: the program that computes its folded weights; None if it has none.
    """

    options: Options
    target: Target
    inputs: InputNames
    name: str
    capture: CaptureOptions
    n_traced: int = 0
    choice: KernelChoice = field(default_factory=KernelChoice)
    folded: ScheduledProgram | None = None

    @gc_guard.paused()  # a compile allocates many objects that stay, and no cycles
    def compile(self, gm: GraphModule, pytorchs: GraphModule) -> Boxed:
        """Compiles the graph, with one kind of kernels, to the callable that replaces it.

        Args:
            gm: the graph with these kernels.
            pytorchs: the graph with PyTorch's, for calls in which `gm` could be wrong.

        Raises:
            FallbackError: it cannot be scheduled, and the options forbid fallbacks.
            UnsupportedError: it cannot be scheduled, and the target has nothing else to run.
        """
        try:
            traced = self.trace(gm)
            return self.target.runner(pytorchs, traced, self.program(traced), self.capture)
        except FallbackError:
            raise
        except (UnsupportedError, ScheduleError) as error:
            return self.target.unscheduled(pytorchs, self.name, error)

    def trace(self, gm: GraphModule) -> TracedProgram:
        """Traces an ATen graph to a task graph with the user's names, and finds its device.

        Raises:
            UnsupportedError: it cannot be scheduled, or there is no such device.
            ScheduleError: a reinplaced operator overwrites a value that is still read.
        """
        names, gm = self.inputs.user_names(gm), reinplace_updates(gm)
        traced = trace(gm, self.name, names, self.inputs.static)
        graph = replace(traced.graph, labels=self._labels(len(traced.graph.outputs)))
        graph = schedule(graph, traced_graph_passes())
        _log.debug("%s: traced:\n%s", self.name, graph)
        if self.options.verify:
            verify_contents(graph, traced.graph)
        device = self.target.runtime_for(graph.device, self.name)
        return TracedProgram(
            traced=replace(traced, graph=self.target.retarget(graph)),
            parameters=self.inputs.parameters(names),
            device=device,
            specs=self.target.specs or device.specs,
            sizes=size_hints(gm),
            folded=self.folded,
        )

    def _labels(self, n_outputs: int) -> tuple[str, ...]:
        """What the outputs of a forward or a backward are; see `TaskGraph`."""
        if self.capture.is_backward:
            of = self.inputs.tensors
            gradients = tuple([f"gradient of {name}" if name else "" for name in of])
            return gradients if len(gradients) == n_outputs else ()
        if self.capture.n_user_outputs is None:
            return ()
        n_saved = max(n_outputs - self.capture.n_user_outputs, 0)
        return ("",) * (n_outputs - n_saved) + ("saved for the backward",) * n_saved

    def program(self, traced: TracedProgram) -> Program:
        """Selects a schedule and returns the program that runs by it.

        Raises:
            ScheduleError: there is no legal schedule.
        """
        decision = self.target.capture_decision(traced.graph, traced.device)
        timed = decision.why_not_here is None and traced.device.can_time
        selection = select_schedules(
            traced,
            self.options,
            self.target.reporter,
            frozen=decision.is_for_replay,
            timed=timed,
        )
        warn = self.target.reporter.warn
        schedules = [dump_source(each, self.options.dump, warn) for each in selection.schedules]
        return Program(
            scheduled=schedules[0],
            status=CaptureStatus(reason=decision.why_not_here),
            specs=traced.specs,
            candidates=selection.candidates,
            alternatives=tuple(schedules[1:]),
            on_winner=selection.on_winner,
            kernel_choice=self.choice,
            n_traced=self.n_traced,
            may_freeze=self.options.freeze,
        )


def dump_source(
    scheduled: ScheduledProgram,
    directory: str | os.PathLike[str] | None,
    warn: Callable[[str], None],
) -> ScheduledProgram:
    """Writes the emitted text to a directory, if there is one; returns the schedule with its path.

    Args:
        scheduled: the schedule and its text.
        directory: the option `dump`.
        warn: called with a message if the text cannot be written.
    """
    if directory is None:
        return scheduled
    folder = absolute(directory)
    try:
        path = write_atomically(folder, scheduled.file_name, scheduled.source)
    except OSError as error:
        warn(f"the module of {scheduled.graph.name} could not be written to {folder}: {error}")
        return scheduled
    return replace(scheduled, path=path)
