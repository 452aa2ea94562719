"""The target of `nimble_fx.plan`: a device that this machine need not have."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.cuda import Cuda
from nimble_fx.devices.specs import Device
from nimble_fx.errors import ScheduleError, UnsupportedError
from nimble_fx.fallback import Reporter
from nimble_fx.frontend.planning.planned_kernels import planned_kernels, without_kernels
from nimble_fx.ir.arguments import map_leaves
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import TensorType, Type
from nimble_fx.options import Options
from nimble_fx.program import Program
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.checks import check_capturable
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.target import CaptureDecision, Target
from nimble_fx.this_machine import constants_here
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.eager_mode import plain_eager_mode

META = torch.device("meta")
_CPU = torch.device("cpu")


class PlannedDevice(Target):
    """The target for graphs that are traced on "meta" and scheduled for a CUDA device."""

    runs_programs = False

    def __init__(
        self, options: Options, runtime: Cuda, specs: Device, on_program: Callable[[Program], None]
    ) -> None:
        """The target for the graphs of one plan.

        Args:
            options: the user's options.
            runtime: a CUDA device, which this machine need not have.
            specs: the figures to schedule for.
            on_program: called with each program.
        """
        self.reporter, self.specs = Reporter(options.on_fallback), specs
        self._options, self._runtime, self._on_program = options, runtime, on_program
        self._device = torch.device(runtime.name)

    def runtime_for(self, device: torch.device, name: str) -> DeviceRuntime:
        """The device that is planned for."""
        return self._runtime

    def retarget(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the planned device in place of "meta", in types and in arguments."""

        def move(leaf: Any) -> Any:
            return self._device if leaf == META else leaf

        tasks = graph.replace_tasks(
            task.updated(args=map_leaves(move, task.args), kwargs=map_leaves(move, task.kwargs))
            for task in graph.tasks
        )

        def placed(of: Type | None) -> Type | None:
            return replace(of, device=move(of.device)) if isinstance(of, TensorType) else of

        return tasks.map_types(placed)

    def constants_on(self, device: torch.device) -> torch.device | None:
        """The planned device if this machine has it; else the CPU, where constants are the same."""
        if device != META:
            return constants_here(device)
        return self._device if self._is_here else _CPU

    def capture_decision(self, graph: TaskGraph, device: DeviceRuntime) -> CaptureDecision:
        """No capture here; a schedule for replay if the program can be captured."""
        where = f"{self._runtime.name} ({self.specs.name})"
        reason = f"it is planned for {where}, which need not be here"
        return CaptureDecision(reason, self._options.freeze and _can_be_captured(graph))

    def runner(
        self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
    ) -> Boxed:
        """The callable of the ATen graph itself, which runs on tensors without data."""
        self._on_program(program)
        return self.as_traced(without_kernels(gm))

    def unscheduled(
        self, gm: GraphModule, name: str, error: UnsupportedError | ScheduleError
    ) -> Boxed:
        """Raises the error: there is nothing to plan."""
        if isinstance(error, UnsupportedError):
            what = f"{name} cannot be planned: {error}. Plan the model's other parts without it"
            raise UnsupportedError(what, error.node, error.source) from error
        report = "This is a bug in nimble_fx, please report it"
        raise UnsupportedError(f"{name} has no legal schedule. {report}: {error}") from error

    def as_traced(self, gm: GraphModule) -> Boxed:
        """The callable of the graph, with constants moved to the device that it was traced on."""
        with plain_eager_mode():
            for node in gm.graph.find_nodes(op="get_attr"):
                value = getattr(gm, node.target)
                setattr(gm, node.target, value.to(node.meta["val"].device))
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]

    def inductor_kernels(self, gm: GraphModule, predicted_us: PredictedTime | None) -> GraphModule:
        """The graph with Inductor's kernels for this machine's GPU; not for "auto", which times."""
        if self._options.kernels == "auto":
            raise UnsupportedError("a plan times nothing; ask for kernels='inductor'")
        return planned_kernels(gm, META, self._device if self._is_here else None, predicted_us)

    @property
    def _is_here(self) -> bool:
        """Whether this machine has the device."""
        return self._runtime.hardware is not None


def _can_be_captured(graph: TaskGraph) -> bool:
    try:
        check_capturable(graph)
    except UnsupportedError:
        return False
    return True
