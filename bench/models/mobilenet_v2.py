"""MobileNetV2 of width 1, with random weights: `mobilenet_v2`.

Source: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: Inverted Residuals and Linear
Bottlenecks", CVPR 2018: table 2 (the network), table 1 and figure 4d (the bottleneck). As released
by its authors, a bottleneck with expansion factor 1 has no expanding convolution.

On images of 32 x 32 the last depthwise convolutions see one pixel: in training, the batch norm
after them cancels their one weight that counts, and all their gradients are zero up to rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import nn

from bench.models.layers import Activation, Residual, classifier, conv_norm, initialize
from bench.models.model import Model, cifar10_form, image_form


class Row(NamedTuple):
    """A row of table 2: so many `blocks`, of which the first has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int


ROWS = (
    Row(1, 16, 1, 1),
    Row(6, 24, 2, 2),
    Row(6, 32, 3, 2),
    Row(6, 64, 4, 2),
    Row(6, 96, 3, 1),
    Row(6, 160, 3, 2),
    Row(6, 320, 1, 1),
)
STEM_CHANNELS, LAST_CHANNELS = 32, 1280


def inverted_bottleneck(
    in_channels: int,
    out_channels: int,
    expansion: int,
    stride: int,
    size: int = 3,
    activation: Activation = nn.ReLU6,
    gate: Callable[[int], nn.Module] = nn.Identity,
) -> nn.Module:
    """Expands, convolves depthwise, projects: (N, in, H, W) -> (N, out, H/stride, W/stride).

    A residual block where input and output have the same shape.

    Args:
        in_channels: those of the input.
        out_channels: those of the output.
        expansion: how many times as many channels the depthwise convolution has.
        stride: of the depthwise convolution.
        size: of its kernel.
        activation: after each convolution but the projecting one.
        gate: from a number of channels, what comes between the last two convolutions.
    """
    width = expansion * in_channels
    layers: list[nn.Module] = []
    if expansion > 1:
        layers.append(conv_norm(in_channels, width, activation=activation))
    layers += [
        conv_norm(width, width, size, stride, groups=width, activation=activation),
        gate(width),
        conv_norm(width, out_channels, activation=nn.Identity),
    ]
    branch = nn.Sequential(*layers)
    return Residual(branch) if stride == 1 and in_channels == out_channels else branch


class MobileNetV2(nn.Sequential):
    """MobileNetV2: (batch, 3, H, W) float32 -> logits (batch, num_classes)."""

    def __init__(self, num_classes: int = 1000) -> None:
        channels = STEM_CHANNELS
        layers: list[nn.Module] = [conv_norm(3, channels, 3, stride=2, activation=nn.ReLU6)]
        for row in ROWS:
            for block in range(row.blocks):
                stride = 1 if block else row.stride
                layers.append(inverted_bottleneck(channels, row.channels, row.expansion, stride))
                channels = row.channels
        layers.append(conv_norm(channels, LAST_CHANNELS, activation=nn.ReLU6))
        super().__init__(*layers, classifier(LAST_CHANNELS, num_classes))
        self.apply(initialize)


MODELS: tuple[Model, ...] = (
    Model(
        name="mobilenet_v2",
        title="MobileNetV2",
        source='Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", '
        "CVPR 2018",
        n_parameters=3_504_872,
        inference=image_form("", MobileNetV2, 224),
        training=tuple(
            cifar10_form(partial(MobileNetV2, num_classes=10), size) for size in (32, 64, 128)
        ),
    ),
)
