"""What graphs are compiled for: a device, and how what runs them is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.specs import Device
from nimble_fx.fallback import Reporter
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime
from nimble_fx.runtime.capture.freeze import CaptureOptions
from nimble_fx.torch_internals.dynamo.boxed import Boxed

if TYPE_CHECKING:
    from nimble_fx.compiler import Compiler


@dataclass(frozen=True)
class CaptureDecision:
    """Whether a program is scheduled for replay as a CUDA graph, and whether it is captured here.

    Attributes:
        why_not_here: why this process does not capture it; None if it does.
        is_for_replay: whether its schedule is one for replays, in this process or another.
    """

    why_not_here: str | None
    is_for_replay: bool


@dataclass(frozen=True)
class Target:
    """What graphs are compiled for: a device, and how their runnables are made.

    To change one step, `dataclasses.replace` its field.

    Attributes:
        reporter: lists fallbacks.
        runtime_for: returns the device that runs a traced graph; raises UnsupportedError if there
            is none.
        retarget: returns the graph with the types and devices that it has on the target.
        specs: the figures to schedule for; None for those of the device that runs it.
        constants_on: returns the device on which constants of a device are computed; None if that
            is not possible now.
        capture_decision: decides whether a program is captured.
        compile_graph: compiles an ATen graph and returns the callable that replaces it.
        as_traced: returns the callable that runs an ATen graph operator by operator.
        inductor_kernels: returns an ATen graph with Inductor's kernels, as `with_inductor_kernels`.
        runs_programs: whether it runs the programs; a plan runs ATen graphs instead.
    """

    reporter: Reporter
    runtime_for: Callable[[TaskGraph], DeviceRuntime]
    retarget: Callable[[TaskGraph], TaskGraph]
    specs: Device | None
    constants_on: Callable[[torch.device], torch.device | None]
    capture_decision: Callable[[TaskGraph, DeviceRuntime], CaptureDecision]
    compile_graph: Callable[["Compiler", GraphModule, str, CaptureOptions], Boxed]
    as_traced: Callable[[GraphModule], Boxed]
    inductor_kernels: Callable[[GraphModule, PredictedTime | None], GraphModule]
    runs_programs: bool = True
