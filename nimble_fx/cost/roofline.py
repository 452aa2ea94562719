"""Costs of tasks by a roofline model of a device, with corrections for small kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import torch

from nimble_fx.cost import NO_KERNEL, Cost
from nimble_fx.cost.work import Work, work_of
from nimble_fx.devices.specs import Device
from nimble_fx.ir.symbolic_sizes import Sizes, concrete
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.torch_internals.operators import only_allocates

TILE = 64 * 64
"""Elements of a matrix product's result that a block of threads computes, without split-K."""

MAX_SPLITS = 16
"""The most blocks that share a tile of a matrix product, each with a part of the sum (split-K)."""

FLOPS_PER_BLOCK = 2 * TILE * 128
"""Split-K leaves a block at least 128 products for each element."""

ELEMENTS_PER_BLOCK = 512
"""Elements of a pointwise kernel's result for each block (PyTorch: 128 threads, 4 each)."""

BLOCKS_PER_SM = 8
"""Blocks of a pointwise kernel that a processor runs at once."""

PRODUCT_EFFICIENCY = 0.6
"""The fraction of peak operations that a large matrix product or convolution reaches."""

DEPTHWISE_EFFICIENCY = 0.05
"""The fraction of peak operations, without tensor cores, that a depthwise convolution reaches."""

MEMORY_EFFICIENCY = 0.7
"""The fraction of peak bandwidth that a large pointwise kernel reaches."""

BANDWIDTH_PER_SM = 4
"""The most bandwidth that one processor uses, in multiples of an equal share."""

MIN_TF32_CHANNELS = 4
"""The fewest channels for which a convolution runs on tensor cores."""


@dataclass(frozen=True)
class Roofline:
    """A cost model from shapes alone (Williams, Waterman, Patterson, CACM 2009).

    The time of a task is that of its operations or of its bytes, whichever is more, plus the losses
    of small kernels: blocks of threads that do not fill the processors, and the launch. The few
    constants are set by hand: the efficiencies and the least time of a kernel from the kernels of
    AlexNet in a trace of an A100, the others from the known design of PyTorch's, cuBLAS's and
    cuDNN's kernels. `python -m bench.simulation` compares predictions with published times of whole
    models; a single kernel can be off by a factor of two.

    Attributes:
        device: the device that the costs are for.
        sizes: the values of symbolic sizes.
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
        types = graph.types
        known: dict[Work, Cost] = {}
        costs = {}
        for task in graph.launching:
            if only_allocates(task.target):
                costs[task.name] = NO_KERNEL
                continue
            work = work_of(task, types)
            if work not in known:
                known[work] = roofline(work, self.device)
            costs[task.name] = known[work]
        return costs


def roofline(work: Work, device: Device) -> Cost:
    """The cost of one task."""
    blocks = _n_blocks(work, device)
    busy = min(1.0, blocks / device.sms)
    peak, n_kernels = _peak(work, device)
    compute_part, memory_part = (1.0, min(1.0, BANDWIDTH_PER_SM * busy))
    if work.is_product:
        compute_part, memory_part = busy, 1.0
    compute_us = work.flops / (1e6 * peak * compute_part)
    gbps = device.gbps * MEMORY_EFFICIENCY * memory_part
    us = n_kernels * device.kernel_us + max(compute_us, work.nbytes / (1e3 * gbps))
    slots = device.sms if work.is_product else device.sms * BLOCKS_PER_SM
    return Cost(
        us=us,
        nbytes=work.nbytes,
        flops=work.flops,
        share=min(1.0, blocks / slots),
        bandwidth=min(1.0, work.nbytes / (1e3 * us * device.gbps)),
    )


def _n_blocks(work: Work, device: Device) -> float:
    """The number of blocks of threads of its kernel."""
    if not work.is_product or work.is_depthwise:
        return max(1.0, work.n_elements / ELEMENTS_PER_BLOCK)
    tiles = max(1, ceil(work.n_elements / TILE))
    if work.is_convolution:  # cuDNN seldom splits sums
        return tiles
    shared = min(MAX_SPLITS * tiles, work.flops / FLOPS_PER_BLOCK, device.sms)
    return max(tiles, shared)


def _peak(work: Work, device: Device) -> tuple[float, int]:
    """The TFLOPS that it reaches if it fills the device, and its number of kernels."""
    if work.is_depthwise:
        return device.tflops * DEPTHWISE_EFFICIENCY, 1
    if work.dtype in (torch.float16, torch.bfloat16):
        return (device.half_tflops or device.tflops) * PRODUCT_EFFICIENCY, 1
    if work.dtype == torch.float64:
        return (device.double_tflops or device.tflops / 2) * PRODUCT_EFFICIENCY, 1
    if device.tf32_tflops is not None and work.n_channels >= MIN_TF32_CHANNELS:
        return device.tf32_tflops * PRODUCT_EFFICIENCY, 1 + work.n_conversions
    return device.tflops * PRODUCT_EFFICIENCY, 1
