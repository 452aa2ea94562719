"""A program between tracing and scheduling: its task graph and its device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.specs import Device
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.symbolic_sizes import Sizes
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.tracing.aten_to_tasks import Traced


@dataclass(frozen=True)
class TracedProgram:
    """A traced program that has no schedule yet.

    Attributes:
        traced: its graph and constants.
        parameters: the model's names of parameters and buffers, by the graph's names.
        device: the device that runs it.
        specs: the figures of the device that it is scheduled for.
        sizes: its symbolic sizes, with their values in the call that it is compiled for.
        folded: see `ScheduledProgram`.
    """

    traced: Traced
    parameters: Mapping[str, str]
    device: DeviceRuntime
    specs: Device
    sizes: Sizes = field(default_factory=dict)
    folded: ScheduledProgram | None = None

    @property
    def graph(self) -> TaskGraph:
        """Its graph, without a schedule."""
        return self.traced.graph

    def scheduled(self, graph: TaskGraph, source: str) -> ScheduledProgram:
        """The program with a schedule of its graph and the text emitted for it."""
        return ScheduledProgram(
            graph=graph,
            source=source,
            device=self.device.name,
            hardware=self.device.hardware or "",
            constants=self.traced.constants,
            parameters=self.parameters,
            sizes=self.sizes,
            folded=self.folded,
        )
