"""The cells that DARTS found with its second-order gradient, for ImageNet and for CIFAR-10.

Source: Liu, Simonyan, Yang, "DARTS: Differentiable Architecture Search", ICLR 2019: figures 4 and 5
(the cells), section 3 and appendix A (the operations, how cells are stacked).
There is no auxiliary tower and no path dropout.
"""

from functools import partial

from torch import nn

from bench.models.cell_operations import batch_norm
from bench.models.cells import (
    NEWER,
    OLDER,
    Block,
    CellNetwork,
    CellSpec,
    CellTable,
    FeatureMap,
    Stem,
)
from bench.models.model import Model, cifar10_form, image_form

NORMAL = CellTable(
    stride=1,
    blocks=(
        Block(OLDER, "sep_3x3", NEWER, "sep_3x3"),
        Block(OLDER, "sep_3x3", NEWER, "sep_3x3"),
        Block(NEWER, "sep_3x3", OLDER, "identity"),
        Block(OLDER, "identity", 2, "dil_3x3"),
    ),
    concatenated=(2, 3, 4, 5),
)

REDUCTION = CellTable(
    stride=2,
    blocks=(
        Block(OLDER, "max_3x3", NEWER, "max_3x3"),
        Block(2, "identity", NEWER, "max_3x3"),
        Block(OLDER, "max_3x3", 2, "identity"),
        Block(2, "identity", NEWER, "max_3x3"),
    ),
    concatenated=(2, 3, 4, 5),
)


def _plan(n_cells: int, channels: int) -> list[CellSpec]:
    """Normal cells, with a reduction cell at 1/3 and 2/3 of the depth that doubles the channels."""
    first, second = n_cells // 3, 2 * n_cells // 3
    plan = []
    for i in range(n_cells):
        table = REDUCTION if i in (first, second) else NORMAL
        plan.append(CellSpec(table, channels * 2 ** ((i >= first) + (i >= second))))
    return plan


def _convolution(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """3x3 convolution, batch norm: (N, in, H, W) -> (N, out, H / stride, W / stride)."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, batch_norm(out_channels))


def _imagenet_stem(channels: int) -> Stem:
    """Two convolutions halve the images twice, a third one makes the newer input, of half again."""
    older = nn.Sequential(
        _convolution(3, channels // 2, 2), nn.ReLU(), _convolution(channels // 2, channels, 2)
    )
    newer = nn.Sequential(nn.ReLU(), _convolution(channels, channels, 2))
    return Stem(older, newer, FeatureMap(channels, 2), FeatureMap(channels, 3))


def _cifar10_stem(channels: int) -> Stem:
    """One convolution of the images is both inputs."""
    width = 3 * channels
    stem = _convolution(3, width, 1)
    return Stem(stem, nn.Identity(), FeatureMap(width, 0), FeatureMap(width, 0))


def _head(num_classes: int, width: int) -> nn.Sequential:
    """The mean over all pixels, and a linear classifier: (N, width, H, W) -> (N, num_classes)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))


def darts_v2_imagenet() -> CellNetwork:
    """14 cells, 48 channels: (batch, 3, H, W) float32 -> logits (batch, 1000); 32 divides H, W."""
    return CellNetwork(_imagenet_stem(48), _plan(14, 48), partial(_head, 1000))


def darts_v2_cifar10() -> CellNetwork:
    """20 cells, 36 channels: (batch, 3, H, W) float32 -> logits (batch, 10)."""
    return CellNetwork(_cifar10_stem(36), _plan(20, 36), partial(_head, 10))


_SOURCE = "Liu, Simonyan, Yang, DARTS: Differentiable Architecture Search, ICLR 2019"

# The paper rounds the counts to 4.7 and 3.3 million.
MODELS: tuple[Model, ...] = (
    Model(
        name="darts_v2_imagenet",
        title="DARTS V2, ImageNet",
        source=_SOURCE,
        n_parameters=4_718_752,
        inference=image_form("", darts_v2_imagenet, 224),
    ),
    Model(
        name="darts_v2_cifar10",
        title="DARTS V2, CIFAR-10",
        source=_SOURCE,
        n_parameters=3_349_342,
        inference=image_form("CIFAR-10, ", darts_v2_cifar10, 32, classes=10),
        training=(cifar10_form(darts_v2_cifar10, 32),),
    ),
)
