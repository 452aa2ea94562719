"""What edited activities are made from: a program, which can be costed again, or a recorded run."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import MEMORY_EFFICIENCY, Roofline
from nimble_fx.cost.work import floating_types, nbytes_of, value_types
from nimble_fx.devices.specs import Device, find_device
from nimble_fx.errors import OptionError
from nimble_fx.ir.task_graph import TaskGraph, ref_names
from nimble_fx.pipeline import passes_for, schedule
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.simulation.schedule_model import activities
from nimble_fx.traces import Recorded
from nimble_fx.what_if.edits import together
from nimble_fx.what_if.selection import Limit

_COMPUTE = re.compile(
    r"gemm|gemv|conv|xmma|cutlass|cudnn.*(fprop|dgrad|wgrad)|scudnn|winograd|fft|attention|fmha|flash"
)
"""In the names of kernels of matrix products, convolutions and attention, as Daydream finds them
("sgemm", "scudnn"); and of what they are called now."""

_REARRANGES = re.compile(r"nchwToNhwc|nhwcToNchw|computeOffsets|im2col|col2im", re.IGNORECASE)
"""In the names of kernels beside these that only move what these work on."""


class Source(Protocol):
    """What activities are made from. A frozen dataclass."""

    @property
    def activities(self) -> tuple[Activity, ...]:
        """The activities without an edit."""

    @property
    def limits(self) -> Mapping[str, Limit]:
        """What bounds each kernel, by name."""

    @property
    def wide(self) -> Collection[str]:
        """The kernels that compute in 32 bits or more, as far as it is known."""

    @property
    def least_us(self) -> float:
        """What any kernel takes, as far as it is known."""

    @property
    def crossing_us(self) -> float:
        """How much later a kernel starts behind one of another stream than of its own."""

    def fused(self, parts: Sequence[Activity]) -> Activity:
        """What activities are as one: the first, with other figures."""

    def on(self, device: str | Device) -> "Source":
        """The same on another device."""

    def streams(self, n_streams: int) -> "Source":
        """The same on so many streams at most."""


@dataclass(frozen=True)
class Planned:
    """A scheduled program with costs by the roofline.

    Attributes:
        graph: scheduled, and `concrete`.
        device: where it runs.
        frozen: whether it is replayed from a CUDA graph; else the host calls each operator.
    """

    graph: TaskGraph
    device: Device
    frozen: bool = True

    @cached_property
    def _costs(self) -> Mapping[str, Cost]:
        return Roofline(self.device)(self.graph)

    @cached_property
    def activities(self) -> tuple[Activity, ...]:
        """What the device's queues, and the host, are given."""
        return tuple(activities(self.graph, self._costs, self.device, frozen=self.frozen))

    @cached_property
    def limits(self) -> Mapping[str, Limit]:
        """By which side of the roofline's ridge, in float32, a task's operations per byte are."""
        ridge = 1e3 * self.device.tflops / self.device.gbps
        return {
            name: "compute" if cost.flops > ridge * cost.nbytes else "memory"
            for name, cost in self._costs.items()
        }

    @property
    def wide(self) -> Collection[str]:
        """The tasks that read or make float32 or float64."""
        types = value_types(self.graph)
        return [
            task.name
            for task in self.graph.launching
            if {torch.float32, torch.float64}.intersection(floating_types(task, types))
        ]

    @property
    def least_us(self) -> float:
        """What the device takes for the smallest."""
        return self.device.kernel_us

    @property
    def crossing_us(self) -> float:
        """What an event takes."""
        return self.device.event_us

    def fused(self, parts: Sequence[Activity]) -> Activity:
        """All of their work, without launches but one, and without what only they would read.

        A value that one of them makes and only others of them use is neither written nor read.
        """
        full_us = 1e-3 * self._inner_nbytes({part.name for part in parts}) / self.device.gbps
        launches_us = self.device.kernel_us * (len(parts) - 1)
        total_us = sum(part.us for part in parts)
        least_us = min(self.device.kernel_us, total_us)
        us = max(total_us - launches_us - full_us / MEMORY_EFFICIENCY, least_us)
        left_us = max(0.0, sum(part.bandwidth * part.us for part in parts) - full_us)
        return replace(together(parts, us), bandwidth=min(1.0, left_us / us) if us else 0.0)

    def _inner_nbytes(self, names: Collection[str]) -> float:
        """Bytes of what some tasks make for each other alone, once for each time it is touched."""
        users: dict[str, set[str]] = defaultdict(set)
        for task in self.graph.tasks:
            for value in task.uses:
                users[value].add(task.name)
        made = set(names) & set(self.graph.by_name) - set(ref_names(self.graph.outputs))
        return sum(
            nbytes_of(self.graph.by_name[name]) * (1 + len(users[name]))
            for name in made
            if users[name] and users[name] <= set(names)
        )

    def on(self, device: str | Device) -> "Planned":
        """Its tasks costed again on another device."""
        return replace(self, device=find_device(device))

    def streams(self, n_streams: int) -> "Planned":
        """Scheduled again by the policy "nimble", on so many streams at most."""
        if type(n_streams) is not int or n_streams < 1:
            raise OptionError(f"streams({n_streams!r}): it takes a whole number of at least 1")
        return replace(self, graph=schedule(self.graph, passes_for("nimble", n_streams)))


@dataclass(frozen=True)
class Traced:
    """A recorded run, whose kernels take what they took."""

    run: Recorded

    @property
    def activities(self) -> tuple[Activity, ...]:
        """As recorded."""
        return self.run.activities

    @cached_property
    def limits(self) -> Mapping[str, Limit]:
        """By the kernels' names; copies and memsets are neither."""
        return {
            a.name: "compute" if _is_compute(a.name) else "memory"
            for a in self.run.activities
            if a.engine is not None and not a.name.startswith(("Memcpy", "Memset"))
        }

    @property
    def wide(self) -> Collection[str]:
        """All: a trace does not tell in how many bits its kernels compute."""
        return self.limits.keys()

    @property
    def least_us(self) -> float:
        """None that the trace would tell."""
        return 0.0

    @property
    def crossing_us(self) -> float:
        """None: what an event takes is among the recorded gaps, and not told apart."""
        return 0.0

    def fused(self, parts: Sequence[Activity]) -> Activity:
        """As long as they: a trace does not tell what of it their launches and traffic took."""
        return together(parts, sum(part.us for part in parts))

    def on(self, device: str | Device) -> "Traced":
        """Not possible."""
        raise OptionError(
            f"on({device!r}): a trace does not tell what its kernels do, and another device would "
            "be given others; scale them by what you know, or edit a program"
        )

    def streams(self, n_streams: int) -> "Traced":
        """Not possible."""
        raise OptionError(
            f"streams({n_streams!r}): a trace does not tell which kernels need which; move those "
            "that you know of to another queue, or edit a program"
        )


def _is_compute(name: str) -> bool:
    return bool(_COMPUTE.search(name)) and not _REARRANGES.search(name)
