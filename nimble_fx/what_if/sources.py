"""Sources of activities: a program, whose costs can be predicted again, or a recorded run."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import Roofline
from nimble_fx.cost.work import floating_types
from nimble_fx.devices.specs import Device, find_device
from nimble_fx.errors import OptionError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.pipeline import completion_passes, policy_passes, schedule
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.simulation.schedule_model import activities
from nimble_fx.traces import Recorded
from nimble_fx.what_if.edits import together
from nimble_fx.what_if.fusion import Fusion
from nimble_fx.what_if.select_activities import Limit

_COMPUTE = re.compile(
    r"gemm|gemv|conv|xmma|cutlass|cudnn.*(fprop|dgrad|wgrad)|scudnn|winograd|fft|attention|fmha|flash"
)
"""Matches names of kernels of matrix products, convolutions and attention: Daydream's ("sgemm",
"scudnn"), and those of newer libraries."""

_LAYOUT_KERNELS = re.compile(r"nchwToNhwc|nhwcToNchw|computeOffsets|im2col|col2im", re.IGNORECASE)
"""Matches names of kernels that only move the data of these."""


class ActivitySource(Protocol):
    """A source of activities. A frozen dataclass."""

    @property
    def activities(self) -> tuple[Activity, ...]:
        """The activities without edits."""

    @property
    def limits(self) -> Mapping[str, Limit]:
        """What bounds each kernel, by name."""

    @property
    def wide(self) -> Collection[str]:
        """The kernels that compute in 32 bits or more, or all if that is not known."""

    @property
    def least_us(self) -> float:
        """The least time of a kernel; 0 if it is not known."""

    @property
    def crossing_us(self) -> float:
        """The delay of a wait for a kernel of another stream; 0 if it is not known."""

    def fused(self, parts: Sequence[Activity]) -> Activity:
        """The activities fused to one: the first, with other figures."""

    def on(self, device: str | Device) -> "ActivitySource":
        """The same run on another device."""

    def streams(self, n_streams: int) -> "ActivitySource":
        """The same run on at most `n_streams` streams."""


@dataclass(frozen=True)
class PlannedSource:
    """A scheduled program with costs by the roofline.

    Attributes:
        graph: scheduled, and `concrete`.
        device: the device that runs it.
        frozen: whether it is replayed as a CUDA graph; else the host calls each operator.
    """

    graph: TaskGraph
    device: Device
    frozen: bool = True

    @cached_property
    def _costs(self) -> Mapping[str, Cost]:
        return Roofline(self.device)(self.graph)

    @cached_property
    def activities(self) -> tuple[Activity, ...]:
        """The activities of the device and the host."""
        return tuple(activities(self.graph, self._costs, self.device, frozen=self.frozen))

    @cached_property
    def limits(self) -> Mapping[str, Limit]:
        """By whether a task's arithmetic intensity is above the roofline's ridge in float32."""
        return {
            name: "compute" if cost.is_compute_bound(self.device) else "memory"
            for name, cost in self._costs.items()
        }

    @property
    def wide(self) -> Collection[str]:
        """The tasks with operands or results in float32 or float64."""
        types = self.graph.types
        return [
            task.name
            for task in self.graph.launching
            if {torch.float32, torch.float64}.intersection(floating_types(task, types))
        ]

    @property
    def least_us(self) -> float:
        """The device's least time of a kernel."""
        return self.device.kernel_us

    @property
    def crossing_us(self) -> float:
        """The device's delay of an event."""
        return self.device.event_us

    def fused(self, parts: Sequence[Activity]) -> Activity:
        """All of their work with one launch, and without the traffic of intermediate values.

        If edits have changed the times of the parts, that of the whole changes in proportion. Host
        calls, and activities that were inserted, save nothing.
        """
        total_us = sum(part.us for part in parts)
        one = together(parts, total_us)
        if any(name not in self._costs for name in one.parts):
            return one
        us, bandwidth = self._fusion.figures(one.parts)
        unedited_us = sum(self._fusion.figures(part.parts or (part.name,))[0] for part in parts)
        edited_us = us * total_us / unedited_us if unedited_us else us
        return replace(together(parts, edited_us), bandwidth=bandwidth)

    @cached_property
    def _fusion(self) -> Fusion:
        return Fusion(self.graph, self._costs, self.device)

    def on(self, device: str | Device) -> "PlannedSource":
        """The program with its costs on another device."""
        return replace(self, device=find_device(device))

    def streams(self, n_streams: int) -> "PlannedSource":
        """The program scheduled by the policy "nimble" on at most `n_streams` streams."""
        if type(n_streams) is not int or n_streams < 1:
            raise OptionError(f"streams({n_streams!r}): it takes a whole number of at least 1")
        passes = (*policy_passes("nimble", n_streams), *completion_passes())
        return replace(self, graph=schedule(self.graph, passes))  # it was prepared when scheduled


@dataclass(frozen=True)
class RecordedSource:
    """A recorded run, with the recorded times of its kernels."""

    run: Recorded

    @property
    def activities(self) -> tuple[Activity, ...]:
        """The recorded activities."""
        return self.run.activities

    @cached_property
    def limits(self) -> Mapping[str, Limit]:
        """By the kernels' names; copies and memsets have no limit."""
        return {
            a.name: "compute" if _is_compute(a.name) else "memory"
            for a in self.run.activities
            if a.engine is not None and not a.name.startswith(("Memcpy", "Memset"))
        }

    @property
    def wide(self) -> Collection[str]:
        """All kernels, because a trace does not have their dtypes."""
        return self.limits.keys()

    @property
    def least_us(self) -> float:
        """0, because a trace does not have it."""
        return 0.0

    @property
    def crossing_us(self) -> float:
        """0, because the recorded gaps already include it."""
        return 0.0

    def fused(self, parts: Sequence[Activity]) -> Activity:
        """The sum of their times, because a trace does not have those of launches and traffic."""
        return together(parts, sum(part.us for part in parts))

    def on(self, device: str | Device) -> "RecordedSource":
        """Always raises OptionError."""
        raise OptionError(
            f"on({device!r}): a trace does not say what its kernels do, and another device would "
            "run other kernels; scale them by factors that you know, or edit a program"
        )

    def streams(self, n_streams: int) -> "RecordedSource":
        """Always raises OptionError."""
        raise OptionError(
            f"streams({n_streams!r}): a trace does not say which kernels depend on which; move "
            "those that you know of to another queue, or edit a program"
        )


def _is_compute(name: str) -> bool:
    return bool(_COMPUTE.search(name)) and not _LAYOUT_KERNELS.search(name)
