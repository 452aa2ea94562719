"""The target of `torch.compile`: the device that the model is on."""

import logging
from collections.abc import Callable

import torch
from functorch.compile import make_boxed_func
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime, device_for
from nimble_fx.devices.specs import Device
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.errors import OptionError, ScheduleError, UnsupportedError
from nimble_fx.fallback import AS_TRACED, Fallback, Reporter
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.options import Options
from nimble_fx.program import Program, register
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime, with_inductor_kernels
from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.checks import NOT_FROZEN, why_not_captured
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.launch import AsTraced, loses_tangents
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.target import CaptureDecision, Target
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.dynamo.errors import for_user
from nimble_fx.torch_internals.dynamo.trace_log import trace_artifact
from nimble_fx.torch_internals.graph_modules import function_of

_log = logging.getLogger(__name__)


class ThisMachine(Target):
    """The target for programs that run on the model's device, captured if possible.

    The graphs of one Dynamo graph share it: device, memory pools, list of fallbacks.
    """

    specs: Device | None = None
    runs_programs = True

    def __init__(self, options: Options, on_program: Callable[[Program], None] = register) -> None:
        """The target for the graphs of one Dynamo graph.

        Args:
            options: the user's options.
            on_program: called with each compiled program; by default adds it to the process's list.
        """
        self.reporter = Reporter(options.on_fallback)
        self._options, self._on_program = options, on_program
        self._virtual = Virtual(options.seed) if options.device == "virtual" else None
        self._pool_group: PoolGroup | None = None

    def runtime_for(self, device: torch.device, name: str) -> DeviceRuntime:
        """The device of the graph's tensors, or the virtual one if the options ask for it.

        Raises:
            OptionError: the virtual device, for a model that is not on the CPU.
            UnsupportedError: the device's type is not supported.
        """
        if self._virtual is not None and device.type == "cpu":
            return self._virtual
        if self._virtual is not None:
            what = f"device='virtual' is for models on the CPU; {name} has tensors on {device}"
            raise for_user(OptionError(f"option {what}"))
        runtime = device_for(device)
        if runtime is None:
            raise UnsupportedError(f"{name} has tensors on {device}, which nimble_fx does not know")
        return runtime

    def retarget(self, graph: TaskGraph) -> TaskGraph:
        """The graph itself."""
        return graph

    def constants_on(self, device: torch.device) -> torch.device | None:
        """The device itself if constants can be computed on it now."""
        return constants_here(device)

    def capture_decision(self, graph: TaskGraph, device: DeviceRuntime) -> CaptureDecision:
        """Decides whether to capture a graph; reports one that should be captured but cannot."""
        if not self._options.freeze:
            return CaptureDecision(NOT_FROZEN, is_for_replay=False)

        def report(error: UnsupportedError) -> None:
            self.reporter.report(Fallback.caused_by(error, graph.name, "unfrozen"))

        reason = why_not_captured(graph, device, report)
        return CaptureDecision(reason, is_for_replay=reason is None)

    def runner(
        self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
    ) -> Boxed:
        """The callable that runs the program, which this lists and logs."""
        _log_program(program)
        self._on_program(program)
        self._pool_group = self._pool_group or PoolGroup(traced.device)
        may_be_wrong = written_inputs(traced.graph) or loses_tangents(traced.graph, traced.device)
        as_traced = self._as_traced(gm, program.name) if may_be_wrong else None
        run = program.runner(traced.device, self._pool_group, self.reporter, capture, as_traced)
        run.program = program  # type: ignore[attr-defined]  # keeps it alive, and so listed
        run.reporter = self.reporter  # type: ignore[attr-defined]  # likewise
        return run

    def _as_traced(self, gm: GraphModule, name: str) -> AsTraced:
        """Runs calls for which the program would be wrong; does not keep the graph alive."""

        def report_shared(one: str, other: str) -> None:
            reason = (
                f"{one} and {other} share memory, some of which it writes, and did not when it was "
                "compiled; other calls run by the schedule"
            )
            self.reporter.report(Fallback(name, AS_TRACED, reason))

        return AsTraced(_by_operators(gm), report_shared)  # run in the turn of the program

    def unscheduled(
        self, gm: GraphModule, name: str, error: UnsupportedError | ScheduleError
    ) -> Boxed:
        """The callable that runs the graph as traced, which this reports."""
        self.reporter.report(Fallback.caused_by(error, name, AS_TRACED))
        run = self.as_traced(gm)
        run.reporter = self.reporter  # type: ignore[attr-defined]  # keeps it alive, and so listed
        return run

    def as_traced(self, gm: GraphModule) -> Boxed:
        """The callable that runs an ATen graph operator by operator, in turn with captures."""
        run = _by_operators(gm)
        return run if self._pool_group is None else self._pool_group.ordered(run)

    def inductor_kernels(self, gm: GraphModule, predicted_us: PredictedTime | None) -> GraphModule:
        """The graph with Inductor's kernels for the model's device."""
        return with_inductor_kernels(gm, predicted_us)


def _by_operators(gm: GraphModule) -> Boxed:
    return make_boxed_func(function_of(reinplace_updates(gm)))  # type: ignore[no-any-return]


def _log_program(program: Program) -> None:
    if _log.isEnabledFor(logging.INFO):  # the width takes time
        _log.info("%s", program.summary())
    _log.debug("%s: its module:\n%s", program.name, program.source)
    trace_artifact("nimble_summary", program.summary)
    trace_artifact("nimble_schedule", lambda: str(program.graph))
    trace_artifact("nimble_module", lambda: program.source)


def constants_here(device: torch.device) -> torch.device | None:
    """The device itself if constants can be computed on it now; else None."""
    known = device_for(device)
    can_compute = known is not None and known.hardware is not None and not known.is_capturing
    return device if can_compute else None
