"""The target that graphs are compiled for: a device, and the steps that make a callable."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.specs import Device
from nimble_fx.errors import ScheduleError, UnsupportedError
from nimble_fx.fallback import Reporter
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.program import Program
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.torch_internals.dynamo.boxed import Boxed


@dataclass(frozen=True)
class CaptureDecision:
    """Whether a program is scheduled for replay as a CUDA graph, and whether it is captured here.

    Attributes:
        why_not_here: why this process does not capture it; None if it does.
        is_for_replay: whether it is scheduled for replay, in this process or another.
    """

    why_not_here: str | None
    is_for_replay: bool


class Target(Protocol):
    """The target that graphs are compiled for: a device, and the steps that make a callable.

    Attributes:
        reporter: lists fallbacks.
        specs: the performance figures to schedule for; None for those of the device that runs it.
        runs_programs: whether the programs run; a plan runs their ATen graphs instead.
    """

    reporter: Reporter
    specs: Device | None
    runs_programs: bool

    def runtime_for(self, device: torch.device, name: str) -> DeviceRuntime:
        """The device that runs a traced graph.

        Args:
            device: the device of the graph's tensors.
            name: the graph's name, for errors.

        Raises:
            UnsupportedError: there is none.
        """
        ...

    def retarget(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the types and devices that it has on the target."""
        ...

    def constants_on(self, device: torch.device) -> torch.device | None:
        """Where to compute the constants of a device; None if they cannot be computed now."""
        ...

    def capture_decision(self, graph: TaskGraph, device: DeviceRuntime) -> CaptureDecision:
        """Decides whether a program is captured."""
        ...

    def runner(
        self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
    ) -> Boxed:
        """The callable that replaces an ATen graph which has a program.

        Args:
            gm: the graph, with PyTorch's kernels.
            traced: its task graph, with the program's kernels.
            program: its program.
            capture: how its captures and callers share memory.
        """
        ...

    def unscheduled(
        self, gm: GraphModule, name: str, error: UnsupportedError | ScheduleError
    ) -> Boxed:
        """The callable that replaces an ATen graph which cannot be scheduled.

        Args:
            gm: the graph, with PyTorch's kernels.
            name: its name.
            error: why it cannot be scheduled.

        Raises:
            UnsupportedError: the target has nothing else to run.
        """
        ...

    def as_traced(self, gm: GraphModule) -> Boxed:
        """The callable that runs an ATen graph operator by operator."""
        ...

    def inductor_kernels(self, gm: GraphModule, predicted_us: PredictedTime | None) -> GraphModule:
        """The graph with Inductor's kernels; see `with_inductor_kernels`."""
        ...
