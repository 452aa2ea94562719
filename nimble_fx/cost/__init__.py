"""What tasks cost on a device: microseconds, bytes, operations, and the share that they need."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph

Origin = Literal["roofline", "measured", "interpolated"]
"""Where a figure is from; "measured" is the most accurate."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a task takes when it has the device for itself.

    Attributes:
        us: microseconds, its launch by the device included.
        nbytes: bytes that it reads and writes.
        flops: operations of its matrix products and convolutions, one for each element else.
        share: of the device's processors that it keeps busy, from 0 to 1.
        bandwidth: of the device's memory bandwidth that it uses, from 0 to 1.
        origin: where `us` is from.
    """

    us: float
    nbytes: float
    flops: float
    share: float
    bandwidth: float
    origin: Origin = "roofline"

    def is_compute_bound(self, device: Device) -> bool:
        """Whether its operations per byte exceed the device's at its peak in float32.

        Source: Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009.
        """
        return self.flops * device.gbps > self.nbytes * device.tflops * 1e3


class CostModel(Protocol):
    """Says what each launching task of a graph costs on a device. A frozen dataclass.

    As a string it is short: it stands in the provenance of graphs that were scheduled by it.
    """

    @property
    def device(self) -> Device:
        """The device."""

    def __call__(self, graph: TaskGraph) -> Mapping[str, Cost]:
        """The cost of each launching task, by its name."""
