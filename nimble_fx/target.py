"""The target that graphs are compiled for: a device, and the steps that make a callable."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.specs import Device
from nimble_fx.fallback import Reporter
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.program import Program
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime
from nimble_fx.runtime.capture.freeze import CaptureOptions
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.torch_internals.dynamo.boxed import Boxed


class ProgramMaker(Protocol):
    """Makes programs of ATen graphs, for `Target.compile_graph`."""

    def trace(self, gm: GraphModule, name: str) -> TracedProgram:
        """Traces a graph to a task graph, and finds its device."""
        ...

    def program(self, traced: TracedProgram) -> Program:
        """Selects a schedule and returns the program that runs by it."""
        ...


@dataclass(frozen=True)
class CaptureDecision:
    """Whether a program is scheduled for replay as a CUDA graph, and whether it is captured here.

    Attributes:
        why_not_here: why this process does not capture it; None if it does.
        is_for_replay: whether it is scheduled for replay, in this process or another.
    """

    why_not_here: str | None
    is_for_replay: bool


@dataclass(frozen=True)
class Target:
    """The target that graphs are compiled for: a device, and the steps that make a callable.

    To change one step, `dataclasses.replace` its field.

    Attributes:
        reporter: lists fallbacks.
        runtime_for: returns the device that runs a traced graph; raises UnsupportedError if there
            is none.
        retarget: returns the graph with the types and devices that it has on the target.
        specs: the performance figures to schedule for; None for those of the device that runs it.
        constants_on: takes the device of constants and returns the device to compute them on; None
            if they cannot be computed now.
        capture_decision: decides whether a program is captured.
        compile_graph: compiles an ATen graph and returns the callable that replaces it.
        as_traced: returns the callable that runs an ATen graph operator by operator.
        inductor_kernels: returns an ATen graph with Inductor's kernels; see
            `with_inductor_kernels`.
        runs_programs: whether the programs run; a plan runs their ATen graphs instead.
    """

    reporter: Reporter
    runtime_for: Callable[[TaskGraph], DeviceRuntime]
    retarget: Callable[[TaskGraph], TaskGraph]
    specs: Device | None
    constants_on: Callable[[torch.device], torch.device | None]
    capture_decision: Callable[[TaskGraph, DeviceRuntime], CaptureDecision]
    compile_graph: Callable[[ProgramMaker, GraphModule, str, CaptureOptions], Boxed]
    as_traced: Callable[[GraphModule], Boxed]
    inductor_kernels: Callable[[GraphModule, PredictedTime | None], GraphModule]
    runs_programs: bool = True
