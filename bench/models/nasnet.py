"""NASNet-A for ImageNet, with random weights: `nasnet_a_mobile` and `nasnet_a_large`.

Source: Zoph, Vasudevan, Shlens, Le, "Learning Transferable Architectures for Scalable Image
Recognition", CVPR 2018: figure 4 (the cells), figure 2 and appendix A (how they are stacked).
There is no auxiliary head and no ScheduledDropPath; neither is part of the model at inference.

A cell is data, a `CellTable`; `Cell` interprets it, for the stem, normal and reduction cells alike.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)


def _projection(in_channels: int, out_channels: int) -> nn.Sequential:
    """ReLU, 1x1 convolution, batch norm: (N, in, H, W) -> (N, out, H, W)."""
    convolution = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    return nn.Sequential(nn.ReLU(), convolution, _batch_norm(out_channels))


def _separable(size: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """A separable convolution, applied twice as in the paper; only the first one has the stride.

    Each: ReLU, depthwise convolution, pointwise convolution, batch norm.
    """
    layers: list[nn.Module] = []
    for width, step in ((in_channels, stride), (out_channels, 1)):
        depthwise = nn.Conv2d(width, width, size, step, size // 2, groups=width, bias=False)
        pointwise = nn.Conv2d(width, out_channels, 1, bias=False)
        layers += [nn.ReLU(), depthwise, pointwise, _batch_norm(out_channels)]
    return nn.Sequential(*layers)


# From input channels, output channels and stride.
OPERATIONS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "identity": lambda _in, _out, _stride: nn.Identity(),
    "avg_3x3": lambda _in, _out, stride: nn.AvgPool2d(3, stride, 1, count_include_pad=False),
    "max_3x3": lambda _in, _out, stride: nn.MaxPool2d(3, stride, 1),
    "sep_3x3": partial(_separable, 3),
    "sep_5x5": partial(_separable, 5),
    "sep_7x7": partial(_separable, 7),
}


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

NORMAL = CellTable(
    stride=1,
    blocks=(
        Block(NEWER, "sep_5x5", OLDER, "sep_3x3"),
        Block(OLDER, "sep_5x5", OLDER, "sep_3x3"),
        Block(NEWER, "avg_3x3", OLDER, "identity"),
        Block(OLDER, "avg_3x3", OLDER, "avg_3x3"),
        Block(NEWER, "sep_3x3", NEWER, "identity"),
    ),
    concatenated=(OLDER, 2, 3, 4, 5, 6),
)

REDUCTION = CellTable(
    stride=2,
    blocks=(
        Block(NEWER, "sep_5x5", OLDER, "sep_7x7"),
        Block(NEWER, "max_3x3", OLDER, "sep_7x7"),
        Block(NEWER, "avg_3x3", OLDER, "sep_5x5"),
        Block(2, "avg_3x3", 3, "identity"),
        Block(2, "sep_3x3", NEWER, "max_3x3"),
    ),
    concatenated=(3, 4, 5, 6),
)


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
        self.norm = _batch_norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        result: Tensor = self.norm(torch.cat([self.path(x), self.shifted_path(self.shift(x))], 1))
        return result


def _adjustment(source: FeatureMap, newer: FeatureMap, channels: int) -> nn.Module:
    """Brings `source` to the given channels and to the size of `newer`."""
    if source.halvings < newer.halvings:
        return FactorizedReduction(source.channels, channels)
    return _projection(source.channels, channels)


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


def _plan(repeats: int, channels: int, skip: bool) -> list[CellSpec]:
    """Two stem cells, then three stacks of normal cells with a reduction cell between stacks."""
    plan = [CellSpec(REDUCTION, channels // 4), CellSpec(REDUCTION, channels // 2)]
    plan += [CellSpec(NORMAL, channels)] * repeats
    for width in (2 * channels, 4 * channels):
        plan += [CellSpec(REDUCTION, width, skip), *[CellSpec(NORMAL, width)] * repeats]
    return plan


def _make_cells(plan: list[CellSpec], stem: FeatureMap) -> nn.ModuleList:
    """The cells of the plan, each for the feature maps that `NASNetA.forward` hands it."""
    cells = nn.ModuleList()
    older, newer = None, stem
    for spec in plan:
        cells.append(Cell(spec, older, newer))
        width = spec.channels * len(spec.table.concatenated)
        output = FeatureMap(width, newer.halvings + spec.table.stride - 1)
        older, newer = older if spec.keeps_older else newer, output
    return cells


def _initialize(module: nn.Module) -> None:
    """He initialization, with the gain of a ReLU for the depthwise convolutions only.

    PyTorch's default makes logits that differ by 1e-6 between inputs; ReLU's gain, logits of 1e5.
    """
    if isinstance(module, nn.Conv2d):
        gain: Literal["relu", "linear"] = "relu" if module.groups > 1 else "linear"
        nn.init.kaiming_normal_(module.weight, nonlinearity=gain)


class NASNetA(nn.Module):
    """NASNet-A (N @ P): (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 32.

    Args:
        repeats: N, the normal cells in a stack.
        penultimate: P, the channels before the classifier: a multiple of 24 * 4.
        stem_channels: The filters of the first convolution.
        skip: `keeps_older` of the reduction cells between stacks: as released, for 6 @ 4032 only.
        num_classes: The classes.
    """

    def __init__(
        self, repeats: int, penultimate: int, stem_channels: int, skip: bool, num_classes: int
    ) -> None:
        super().__init__()
        # The last stack is 4 times as wide as the first; a normal cell concatenates 6 states.
        self.plan = _plan(repeats, penultimate // 24, skip)
        convolution = nn.Conv2d(3, stem_channels, 3, stride=2, bias=False)
        self.stem = nn.Sequential(convolution, _batch_norm(stem_channels))
        self.cells = _make_cells(self.plan, FeatureMap(stem_channels, 0))
        self.pool = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(penultimate, num_classes))
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        older: Tensor = self.stem(x)
        newer = older
        for spec, cell in zip(self.plan, self.cells, strict=True):
            older, newer = older if spec.keeps_older else newer, cell(older, newer)
        logits: Tensor = self.classifier(self.pool(newer))
        return logits


def nasnet_a_mobile(num_classes: int = 1000) -> NASNetA:
    """NASNet-A (4 @ 1056), 5.3 million parameters, for inputs (batch, 3, 224, 224)."""
    return NASNetA(4, 1056, stem_channels=32, skip=False, num_classes=num_classes)


def nasnet_a_large(num_classes: int = 1000) -> NASNetA:
    """NASNet-A (6 @ 4032), 88.8 million parameters, for inputs (batch, 3, 331, 331)."""
    return NASNetA(6, 4032, stem_channels=96, skip=True, num_classes=num_classes)
