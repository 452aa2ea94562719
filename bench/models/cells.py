"""Image classifiers made of cells, as architecture searches describe them: cells are data.

Source: Zoph, Vasudevan, Shlens, Le, "Learning Transferable Architectures for Scalable Image
Recognition", CVPR 2018: figure 4 (cells) and figure 2 and appendix A (how they are stacked).
AmoebaNet and DARTS have the same frame. There is no auxiliary head, no dropout and no
ScheduledDropPath: none of them is part of a model at inference.

A cell is a `CellTable`, a network a list of `CellSpec`; `Cell` and `CellNetwork` interpret them.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from bench.models.cell_operations import OPERATIONS, batch_norm, pointwise


class Block(NamedTuple):
    """left_op(left input) + right_op(right input). An input is the number of a hidden state."""

    left_input: int
    left_op: str
    right_input: int
    right_op: str


class CellTable(NamedTuple):
    """A cell: hidden states 0 and 1 are its inputs, 2 and up its blocks, in order.

    `stride` is that of the operations on the two inputs; those on blocks have stride 1. The
    output is the hidden states `concatenated`, along the channels.
    """

    stride: int
    blocks: tuple[Block, ...]
    concatenated: tuple[int, ...]


OLDER, NEWER = 0, 1  # The inputs: h_{i-1} and h_i of the paper.


class FeatureMap(NamedTuple):
    """What a cell needs to know of an input: its channels, and how often its size was halved."""

    channels: int
    halvings: int


class CellSpec(NamedTuple):
    """A cell of the network; `channels` is the width of each of its hidden states.

    `keeps_older`: the next cell's older input is this one's older input, not this one's newer one.
    """

    table: CellTable
    channels: int
    keeps_older: bool = False

    @property
    def width(self) -> int:
        """The channels of the cell's output."""
        return self.channels * len(self.table.concatenated)


class Stem(NamedTuple):
    """What comes before the cells.

    Attributes:
        older: from the images to the first cell's older input.
        newer: from that to its newer input.
        older_map: of the older input. None: the cell takes it as it is, unadjusted.
        newer_map: of the newer input.
    """

    older: nn.Module
    newer: nn.Module
    older_map: FeatureMap | None
    newer_map: FeatureMap


class FactorizedReduction(nn.Module):
    """Two strided 1x1 convolutions, one a pixel further: (N, in, H, W) -> (N, out, H/2, W/2).

    Each makes half of the channels. Sizes are rounded up.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.relu = nn.ReLU()
        self.path = nn.Conv2d(in_channels, half, 1, stride=2, bias=False)
        self.shift = nn.ZeroPad2d((-1, 1, -1, 1))
        self.shifted_path = nn.Conv2d(in_channels, out_channels - half, 1, stride=2, bias=False)
        self.norm = batch_norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        result: Tensor = self.norm(torch.cat([self.path(x), self.shifted_path(self.shift(x))], 1))
        return result


def _adjustment(source: FeatureMap, newer: FeatureMap, channels: int) -> nn.Module:
    """Brings `source` to the given channels and to the size of `newer`."""
    if source.halvings < newer.halvings:
        return FactorizedReduction(source.channels, channels)
    return pointwise(source.channels, channels)


class Cell(nn.Module):
    """Interprets a `CellTable`: two feature maps (N, C, H, W) -> (N, C', H/stride, W/stride).

    Args:
        spec: The cell.
        older: The output of the cell before the last. None: `newer` again, this time unadjusted.
        newer: The output of the last cell.
    """

    def __init__(self, spec: CellSpec, older: FeatureMap | None, newer: FeatureMap) -> None:
        super().__init__()
        self.table, channels, _ = spec
        self.adjust_older = _adjustment(older, newer, channels) if older else nn.Identity()
        self.adjust_newer = _adjustment(newer, newer, channels)
        older_channels = channels if older else newer.channels

        def operation(source: int, name: str) -> nn.Module:
            in_channels = older_channels if source == OLDER else channels
            stride = self.table.stride if source in (OLDER, NEWER) else 1
            return OPERATIONS[name](in_channels, channels, stride)

        blocks = self.table.blocks
        self.left = nn.ModuleList(operation(b.left_input, b.left_op) for b in blocks)
        self.right = nn.ModuleList(operation(b.right_input, b.right_op) for b in blocks)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        states: list[Tensor] = [self.adjust_older(older), self.adjust_newer(newer)]
        for block, left, right in zip(self.table.blocks, self.left, self.right, strict=True):
            states.append(left(states[block.left_input]) + right(states[block.right_input]))
        return torch.cat([states[i] for i in self.table.concatenated], dim=1)


def _make_cells(
    plan: Sequence[CellSpec], older: FeatureMap | None, newer: FeatureMap
) -> nn.ModuleList:
    """The cells of the plan, each for the feature maps that `CellNetwork.forward` hands it."""
    cells = nn.ModuleList()
    for spec in plan:
        cells.append(Cell(spec, older, newer))
        output = FeatureMap(spec.width, newer.halvings + spec.table.stride - 1)
        older, newer = older if spec.keeps_older else newer, output
    return cells


def _initialize(module: nn.Module) -> None:
    """He initialization, with the gain of a ReLU for the depthwise convolutions only.

    PyTorch's default makes logits that differ by 1e-6 between inputs; ReLU's gain, logits of 1e5.
    """
    if isinstance(module, nn.Conv2d):
        gain: Literal["relu", "linear"] = "relu" if module.groups > 1 else "linear"
        nn.init.kaiming_normal_(module.weight, nonlinearity=gain)


class CellNetwork(nn.Module):
    """A classifier made of cells: (batch, 3, H, W) float32 -> logits (batch, classes).

    Args:
        stem: what comes before the cells.
        plan: the cells.
        make_head: from the channels of the last cell's output, what comes after the cells.
    """

    def __init__(
        self, stem: Stem, plan: Sequence[CellSpec], make_head: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.plan = plan
        self.older_stem, self.newer_stem = stem.older, stem.newer
        self.cells = _make_cells(plan, stem.older_map, stem.newer_map)
        self.head = make_head(plan[-1].width)
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        older: Tensor = self.older_stem(x)
        newer: Tensor = self.newer_stem(older)
        for spec, cell in zip(self.plan, self.cells, strict=True):
            older, newer = older if spec.keeps_older else newer, cell(older, newer)
        logits: Tensor = self.head(newer)
        return logits


def three_stacks(
    normal: CellTable, reduction: CellTable, repeats: int, channels: int, *, skip: bool = False
) -> list[CellSpec]:
    """The plan for ImageNet: two stem cells, then three stacks with a reduction cell in between.

    Args:
        normal: the cell that keeps the size.
        reduction: the cell that halves it: also the stem's.
        repeats: N, the normal cells in a stack.
        channels: F, of each hidden state in the first stack.
        skip: `keeps_older` of the reduction cells between stacks.
    """
    plan = [CellSpec(reduction, channels // 4), CellSpec(reduction, channels // 2)]
    plan += [CellSpec(normal, channels)] * repeats
    for width in (2 * channels, 4 * channels):
        plan += [CellSpec(reduction, width, skip), *[CellSpec(normal, width)] * repeats]
    return plan


def convolution_stem(channels: int) -> Stem:
    """The stem for ImageNet: one strided 3x3 convolution of so many filters, and batch norm."""
    convolution = nn.Conv2d(3, channels, 3, stride=2, bias=False)
    stem = nn.Sequential(convolution, batch_norm(channels))
    return Stem(stem, nn.Identity(), None, FeatureMap(channels, 0))


def relu_head(num_classes: int) -> Callable[[int], nn.Module]:
    """ReLU, the mean over all pixels, and a linear classifier."""
    return lambda width: nn.Sequential(
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)
    )
