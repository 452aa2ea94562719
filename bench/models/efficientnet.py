"""EfficientNet, with random weights: `efficientnet_b0` and `efficientnet_b5`.

Source: Tan, Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML
2019: table 1 (B0), section 3.3 (compound scaling). B5's factors and its 456 x 456 images are those
of the model that the authors released, as are the roundings of scaled numbers. Squeeze and
excitation: Hu, Shen, Sun, "Squeeze-and-Excitation Networks", CVPR 2018, figure 2. Convolutions with
a stride are padded alike on all sides. On images of 32 x 32 see `mobilenet_v2`.
"""

import math
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from bench.models.layers import classifier, conv_norm, initialize
from bench.models.mobilenet_v2 import inverted_bottleneck
from bench.models.model import Model, cifar10_form, image_form


class Stage(NamedTuple):
    """A row of table 1: so many `blocks` with a kernel of `size`, the first with the stride."""

    expansion: int
    size: int
    stride: int
    channels: int
    blocks: int


B0 = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)
STEM_CHANNELS, LAST_CHANNELS = 32, 1280
SQUEEZE = 4
"""A block's input channels per channel that its squeeze leaves."""


class SqueezeExcitation(nn.Module):
    """Scales each channel by a number that depends on all channels' means: (N, C, H, W) -> same.

    Args:
        squeezed: The channels between its two layers.
        channels: C.
    """

    def __init__(self, squeezed: int, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), nn.SiLU()
        )
        self.excitation = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x * self.excitation(self.squeeze(x)).sigmoid()
        return result


def _open_gate(module: nn.Module) -> None:
    """Lets a new gate pass 0.9 of its input: if it were half, logits would differ by 1e-4."""
    if isinstance(module, SqueezeExcitation) and module.excitation.bias is not None:
        nn.init.constant_(module.excitation.bias, 2.0)


def _scaled(channels: int, factor: float) -> int:
    """The multiple of 8 next to factor * channels, but not less than 90% of it."""
    wanted = factor * channels
    rounded = int(wanted + 4) // 8 * 8
    return rounded if rounded >= 0.9 * wanted else rounded + 8


class EfficientNet(nn.Sequential):
    """EfficientNet: (batch, 3, H, W) float32 -> logits (batch, num_classes).

    Args:
        width: What B0's channels are multiplied by.
        depth: What B0's blocks of each stage are multiplied by.
        num_classes: The classes.
    """

    def __init__(self, width: float, depth: float, num_classes: int = 1000) -> None:
        channels, last = _scaled(STEM_CHANNELS, width), _scaled(LAST_CHANNELS, width)
        layers: list[nn.Module] = [conv_norm(3, channels, 3, stride=2, activation=nn.SiLU)]
        for stage in B0:
            out_channels = _scaled(stage.channels, width)
            for block in range(math.ceil(depth * stage.blocks)):
                stride = 1 if block else stage.stride
                layers.append(_block(channels, out_channels, stage, stride))
                channels = out_channels
        layers.append(conv_norm(channels, last, activation=nn.SiLU))
        super().__init__(*layers, classifier(last, num_classes))
        self.apply(initialize)
        self.apply(_open_gate)


def _block(in_channels: int, out_channels: int, stage: Stage, stride: int) -> nn.Module:
    """(N, in, H, W) -> (N, out, H/stride, W/stride)."""
    return inverted_bottleneck(
        in_channels,
        out_channels,
        stage.expansion,
        stride,
        stage.size,
        activation=nn.SiLU,
        gate=partial(SqueezeExcitation, in_channels // SQUEEZE),
    )


efficientnet_b0 = partial(EfficientNet, 1.0, 1.0)
efficientnet_b5 = partial(EfficientNet, 1.6, 2.2)

SOURCE = (
    'Tan, Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019'
)

MODELS: tuple[Model, ...] = (
    Model(
        name="efficientnet_b0",
        title="EfficientNet-B0",
        source=SOURCE,
        n_parameters=5_288_548,
        inference=image_form("", efficientnet_b0, 224),
        training=tuple(
            cifar10_form(partial(efficientnet_b0, num_classes=10), size) for size in (32, 64, 128)
        ),
    ),
    Model(
        name="efficientnet_b5",
        title="EfficientNet-B5",
        source=SOURCE,
        n_parameters=30_389_784,
        inference=image_form("", efficientnet_b5, 456),
    ),
)
