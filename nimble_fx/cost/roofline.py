"""A task's time from what it does and what a device can do: the roofline, and its edges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import torch

from nimble_fx.cost import Cost
from nimble_fx.cost.work import Work, value_types, work_of
from nimble_fx.devices.specs import Device
from nimble_fx.ir.symbolic_sizes import Sizes, concrete
from nimble_fx.ir.task_graph import TaskGraph

TILE = 64 * 64
"""Elements of a matrix product's result that one block of threads makes, if blocks are enough."""

MAX_SPLITS = 16
"""So many blocks of a matrix product may share one tile, each with a part of the sum (split-K)."""

FLOPS_PER_BLOCK = 2 * TILE * 128
"""A block is given a sum of 128 products for each element, or more."""

ELEMENTS_PER_BLOCK = 512
"""Elements of a pointwise kernel's result that one block makes (PyTorch: 128 threads, 4 each)."""

BLOCKS_PER_SM = 8
"""Blocks of a pointwise kernel that a processor runs at once."""

PRODUCT_EFFICIENCY = 0.6
"""What of the peak a large matrix product or convolution reaches."""

DEPTHWISE_EFFICIENCY = 0.05
"""What of the peak, without tensor cores, a depthwise convolution reaches."""

MEMORY_EFFICIENCY = 0.7
"""What of the bandwidth a large pointwise kernel reaches."""

REACH = 4
"""A processor draws up to so many times its part of the bandwidth."""

MIN_TF32_CHANNELS = 4
"""Tensor cores take convolutions over so many channels or more."""

TF32_KERNELS = 3
"""Kernels of a convolution in TF32: two bring its arguments into the layout of tensor cores."""


@dataclass(frozen=True)
class Roofline:
    """What tasks take on a device, from shapes alone (Williams, Waterman, Patterson, CACM 2009).

    The time is that of the operations or of the bytes, whichever is more, with what small kernels
    lose to it: blocks of threads that do not fill the processors, and the launch. The constants are
    few, and set by hand: efficiencies and the least time of a kernel after the kernels of AlexNet
    in a trace of an A100, the rest after what is known of PyTorch's, cuBLAS's and cuDNN's kernels.
    `python -m bench.simulation` shows how far published times of whole models are from what they
    say; a single kernel can be off by a factor of two.

    Attributes:
        device: where.
        sizes: what symbolic sizes are taken for.
    """

    device: Device
    sizes: Sizes = field(default_factory=dict)

    def __str__(self) -> str:
        return self.device.name

    def __call__(self, graph: TaskGraph) -> Mapping[str, Cost]:
        """The cost of each launching task, by its name.

        Raises:
            UnsupportedError: a size depends on a symbol that `sizes` does not have.
        """
        graph = concrete(graph, self.sizes)
        types = value_types(graph)
        known: dict[Work, Cost] = {}
        costs = {}
        for task in graph.launching:
            work = work_of(task, types)
            if work not in known:
                known[work] = roofline(work, self.device)
            costs[task.name] = known[work]
        return costs


def roofline(work: Work, device: Device) -> Cost:
    """What one task takes."""
    blocks = _n_blocks(work, device)
    busy = min(1.0, blocks / device.sms)
    peak, n_kernels = _peak(work, device)
    filled, drawing = (busy, 1.0) if work.is_product else (1.0, min(1.0, REACH * busy))
    compute_us = work.flops / (1e6 * peak * filled)
    drawn = device.gbps * MEMORY_EFFICIENCY * drawing
    us = n_kernels * device.kernel_us + max(compute_us, work.nbytes / (1e3 * drawn))
    slots = device.sms if work.is_product else device.sms * BLOCKS_PER_SM
    return Cost(
        us=us,
        nbytes=work.nbytes,
        flops=work.flops,
        share=min(1.0, blocks / slots),
        bandwidth=min(1.0, work.nbytes / (1e3 * us * device.gbps)),
    )


def _n_blocks(work: Work, device: Device) -> float:
    """Blocks of threads that its kernel has."""
    if not work.is_product or work.n_channels == 1:
        return max(1.0, work.n_elements / ELEMENTS_PER_BLOCK)
    tiles = max(1, ceil(work.n_elements / TILE))
    if work.is_convolution:  # cuDNN seldom splits sums
        return tiles
    shared = min(MAX_SPLITS * tiles, work.flops / FLOPS_PER_BLOCK, device.sms)
    return max(tiles, shared)


def _peak(work: Work, device: Device) -> tuple[float, int]:
    """The 10^12 operations a second that it reaches if it fills the device; its kernels."""
    if work.n_channels == 1:
        return device.tflops * DEPTHWISE_EFFICIENCY, 1
    if work.dtype in (torch.float16, torch.bfloat16):
        return (device.half_tflops or device.tflops) * PRODUCT_EFFICIENCY, 1
    if work.dtype == torch.float64:
        return (device.double_tflops or device.tflops / 2) * PRODUCT_EFFICIENCY, 1
    if device.tf32_tflops is not None and work.n_channels >= MIN_TF32_CHANNELS:
        return device.tf32_tflops * PRODUCT_EFFICIENCY, TF32_KERNELS
    return device.tflops * PRODUCT_EFFICIENCY, 1
