"""Inception-v3, with random weights and no auxiliary classifier: `inception_v3`.

Source: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception Architecture for
Computer Vision", CVPR 2016: table 1 (the network), figures 5 to 7 (its modules for the grids of
35x35, 17x17 and 8x8), figure 10 (how a grid is reduced). Where the paper leaves a number open, or
the model that its authors released differs, it is the released one, of 23,834,568 parameters: the
stem has a pooling in place of table 1's second strided convolution, and the modules for 35x35 keep
one 5x5 convolution.

A module is data, a tuple of branches; `_sequence` interprets it.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import nn

from bench.models.layers import Branches, classifier, conv_norm, initialize
from bench.models.model import Model, cifar10_form, image_form


class Conv(NamedTuple):
    """A convolution with batch norm and ReLU; `padding` as for `conv_norm`."""

    channels: int
    size: int | tuple[int, int] = 1
    stride: int = 1
    padding: int | None = None


class Average(NamedTuple):
    """Average pooling over 3x3, of the same size."""


class Halve(NamedTuple):
    """Maximum pooling over 3x3 with stride 2, without padding."""


class Split(NamedTuple):
    """Branches of one input, concatenated."""

    branches: tuple["Branch", ...]


Step = Conv | Average | Halve | Split
Branch = tuple[Step, ...]

ROW, COLUMN = (1, 7), (7, 1)

STEM: Branch = (
    Conv(32, 3, 2, padding=0),
    Conv(32, 3, padding=0),
    Conv(64, 3),
    Halve(),
    Conv(80),
    Conv(192, 3, padding=0),
    Halve(),
)


def grid_35(pool: int) -> Split:
    """Figure 5; `pool` is the channels of the pooling's branch."""
    return Split(
        (
            (Conv(64),),
            (Conv(48), Conv(64, 5)),
            (Conv(64), Conv(96, 3), Conv(96, 3)),
            (Average(), Conv(pool)),
        )
    )


def grid_17(inner: int) -> Split:
    """Figure 6 with n = 7; `inner` is the channels of all but each branch's last convolution."""
    row, column = Conv(inner, ROW), Conv(inner, COLUMN)
    return Split(
        (
            (Conv(192),),
            (Conv(inner), row, Conv(192, COLUMN)),
            (Conv(inner), column, row, column, Conv(192, ROW)),
            (Average(), Conv(192)),
        )
    )


REDUCTION_TO_17 = Split(
    (
        (Conv(384, 3, 2, padding=0),),
        (Conv(64), Conv(96, 3), Conv(96, 3, 2, padding=0)),
        (Halve(),),
    )
)
REDUCTION_TO_8 = Split(
    (
        (Conv(192), Conv(320, 3, 2, padding=0)),
        (Conv(192), Conv(192, ROW), Conv(192, COLUMN), Conv(192, 3, 2, padding=0)),
        (Halve(),),
    )
)
WIDE = Split(((Conv(384, (1, 3)),), (Conv(384, (3, 1)),)))
GRID_8 = Split(  # Figure 7.
    (
        (Conv(320),),
        (Conv(384), WIDE),
        (Conv(448), Conv(384, 3), WIDE),
        (Average(), Conv(192)),
    )
)
NETWORK: Branch = (
    *STEM,
    *map(grid_35, (32, 64, 64)),
    REDUCTION_TO_17,
    *map(grid_17, (128, 160, 160, 192)),
    REDUCTION_TO_8,
    *(GRID_8, GRID_8),
)


def _sequence(steps: Sequence[Step], channels: int) -> tuple[nn.Sequential, int]:
    """The steps as layers for an input of so many channels, and the channels of their output."""
    layers: list[nn.Module] = []
    for step in steps:
        layer, channels = _layer(step, channels)
        layers.append(layer)
    return nn.Sequential(*layers), channels


def _layer(step: Step, channels: int) -> tuple[nn.Module, int]:
    """A step as a layer for an input of so many channels, and the channels of its output."""
    match step:
        case Conv(out_channels, size, stride, padding):
            return conv_norm(channels, out_channels, size, stride, padding), out_channels
        case Average():
            return nn.AvgPool2d(3, 1, 1, count_include_pad=False), channels
        case Halve():
            return nn.MaxPool2d(3, 2), channels
        case Split(branches):
            made = [_sequence(branch, channels) for branch in branches]
            return Branches(*(layers for layers, _ in made)), sum(out for _, out in made)


class InceptionV3(nn.Sequential):
    """Inception-v3: (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 75."""

    def __init__(self, num_classes: int = 1000) -> None:
        layers, channels = _sequence(NETWORK, 3)
        super().__init__(layers, classifier(channels, num_classes))
        self.apply(initialize)


MODELS: tuple[Model, ...] = (
    Model(
        name="inception_v3",
        title="Inception-v3",
        source='Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", '
        "CVPR 2016",
        n_parameters=23_834_568,
        inference=image_form("", InceptionV3, 299),
        training=(cifar10_form(partial(InceptionV3, num_classes=10), 128),),
    ),
)
