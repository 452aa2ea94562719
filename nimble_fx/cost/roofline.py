"""A task's time from what it does and what a device can do: the roofline, and its edges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import torch

from nimble_fx.cost import Cost
from nimble_fx.cost.device import Device
from nimble_fx.cost.work import Sizes, Work, value_types, work_of
from nimble_fx.ir import TaskGraph

TILE = 64 * 64
"""Elements of a matrix product's result that one block of threads makes."""

MAX_SPLITS = 16
"""So many blocks may share one tile, each with a part of the sum (split-K)."""

FLOPS_PER_BLOCK = 2 * TILE * 512
"""A block is given a sum of about 512 products for each element, or more."""

ELEMENTS_PER_BLOCK = 512
"""Elements of a pointwise kernel's result that one block makes (PyTorch: 128 threads, 4 each)."""

BLOCKS_PER_SM = 8
"""Blocks of a pointwise kernel that a processor runs at once."""

PRODUCT_EFFICIENCY = 0.6
"""What of the peak a large matrix product or convolution reaches."""

MEMORY_EFFICIENCY = 0.75
"""What of the bandwidth a large pointwise kernel reaches."""

REACH = 4
"""A processor draws up to so many times its part of the bandwidth."""


@dataclass(frozen=True)
class Roofline:
    """What tasks take on a device, from shapes alone (Williams, Waterman, Patterson, CACM 2009).

    The time is that of the operations or of the bytes, whichever is more, with what small kernels
    lose to it: blocks of threads that do not fill the processors, or the last wave of them, and
    the launch.

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
        types = value_types(graph)
        known: dict[Work, Cost] = {}
        costs = {}
        for task in graph.launching:
            work = work_of(task, types, self.sizes)
            if work not in known:
                known[work] = roofline(work, self.device)
            costs[task.name] = known[work]
        return costs


def roofline(work: Work, device: Device) -> Cost:
    """What one task takes."""
    blocks = _n_blocks(work, device)
    filled = blocks / (device.sms * ceil(blocks / device.sms)) if work.is_product else 1.0
    busy = min(1.0, blocks / device.sms)
    compute_us = work.flops / (1e6 * _peak_tflops(work, device) * PRODUCT_EFFICIENCY * filled)
    drawn = device.gbps * MEMORY_EFFICIENCY * min(1.0, REACH * busy)
    us = device.kernel_us + max(compute_us, work.nbytes / (1e3 * drawn))
    slots = device.sms if work.is_product else device.sms * BLOCKS_PER_SM
    return Cost(
        us=us,
        nbytes=work.nbytes,
        flops=work.flops,
        share=min(1.0, blocks / slots),
        bandwidth=min(1.0, work.nbytes / (1e3 * us * device.gbps)),
    )


def _n_blocks(work: Work, device: Device) -> int:
    """Blocks of threads that its kernel has."""
    if not work.is_product:
        return max(1, ceil(work.n_elements / ELEMENTS_PER_BLOCK))
    tiles = max(1, ceil(work.n_elements / TILE))
    splits = min(MAX_SPLITS, max(1, int(work.flops / (FLOPS_PER_BLOCK * tiles))))
    return tiles if tiles >= device.sms else min(tiles * splits, max(tiles, device.sms))


def _peak_tflops(work: Work, device: Device) -> float:
    if work.dtype in (torch.float16, torch.bfloat16):
        return device.half_tflops or device.tflops
    if work.dtype == torch.float64:
        return device.double_tflops or device.tflops / 2
    tf32 = device.tf32_tflops if work.is_convolution else None
    return tf32 or device.tflops
