"""The costs of tasks on a device: microseconds, bytes, operations, and shares of its resources."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph

Origin = Literal["roofline", "measured", "interpolated"]
"""Where a time comes from; "measured" is the most reliable."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a task that has the device to itself.

    Attributes:
        us: microseconds, including its launch by the device.
        nbytes: bytes that it reads and writes.
        flops: operations of its matrix products and convolutions, else one for each element.
        share: the fraction of the device's processors that it uses, from 0 to 1.
        bandwidth: the fraction of the device's memory bandwidth that it uses, from 0 to 1.
        origin: where `us` comes from.
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


NO_KERNEL = Cost(us=0.0, nbytes=0.0, flops=0.0, share=0.0, bandwidth=0.0)
"""The cost of an allocation, such as `torch.empty`, which only the host pays."""


class CostModel(Protocol):
    """Predicts the cost of each launching task of a graph on a device. A frozen dataclass.

    Its `str` is short, because it is part of the provenance of graphs scheduled with it.
    """

    @property
    def device(self) -> Device:
        """The device that the costs are for."""

    def __call__(self, graph: TaskGraph) -> Mapping[str, Cost]:
        """The cost of each launching task, by its name."""
