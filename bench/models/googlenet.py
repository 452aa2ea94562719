"""GoogLeNet (Inception v1) with batch norm and random weights: `googlenet`.

Source: Szegedy, Liu, Jia, Sermanet, Reed, Anguelov, Erhan, Vanhoucke, Rabinovich, "Going Deeper
with Convolutions", CVPR 2015: table 1 (the network), figure 2b (the module). Three things differ,
as in the form that is in common use, of 6,624,904 parameters: a batch norm after each convolution
in place of its bias, 3x3 kernels where a module has 5x5 ones, and neither local response
normalization nor auxiliary classifiers. The paper's form has 6,998,552: with 5x5 kernels 380,928
more, with biases in place of batch norms 7,280 less.
"""

from functools import partial
from typing import NamedTuple

from torch import nn

from bench.models.layers import Branches, classifier, conv_norm, initialize
from bench.models.model import Model, cifar10_form, image_form


class Inception(NamedTuple):
    """A row of table 1: the channels of a module's convolutions.

    `reduce_3x3` and `reduce_5x5` are those of the 1x1 convolutions before; `pool` is that of the
    one after the pooling.
    """

    conv_1x1: int
    reduce_3x3: int
    conv_3x3: int
    reduce_5x5: int
    conv_5x5: int
    pool: int

    @property
    def out_channels(self) -> int:
        """The channels of the module's output."""
        return self.conv_1x1 + self.conv_3x3 + self.conv_5x5 + self.pool


# Modules 3a, 3b; 4a to 4e; 5a, 5b. A pooling halves the image before each group.
GROUPS = (
    (Inception(64, 96, 128, 16, 32, 32), Inception(128, 128, 192, 32, 96, 64)),
    (
        Inception(192, 96, 208, 16, 48, 64),
        Inception(160, 112, 224, 24, 64, 64),
        Inception(128, 128, 256, 24, 64, 64),
        Inception(112, 144, 288, 32, 64, 64),
        Inception(256, 160, 320, 32, 128, 128),
    ),
    (Inception(256, 160, 320, 32, 128, 128), Inception(384, 192, 384, 48, 128, 128)),
)


def _module(in_channels: int, row: Inception) -> Branches:
    """Four branches: (N, in, H, W) -> (N, row.out_channels, H, W)."""
    return Branches(
        conv_norm(in_channels, row.conv_1x1),
        nn.Sequential(
            conv_norm(in_channels, row.reduce_3x3), conv_norm(row.reduce_3x3, row.conv_3x3, 3)
        ),
        nn.Sequential(
            conv_norm(in_channels, row.reduce_5x5), conv_norm(row.reduce_5x5, row.conv_5x5, 3)
        ),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(in_channels, row.pool)),
    )


def _halving() -> nn.MaxPool2d:
    """(N, C, H, W) -> (N, C, H/2, W/2), rounded up."""
    return nn.MaxPool2d(3, 2, ceil_mode=True)


class GoogLeNet(nn.Sequential):
    """GoogLeNet: (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 32."""

    def __init__(self, num_classes: int = 1000) -> None:
        layers: list[nn.Module] = [
            conv_norm(3, 64, 7, stride=2),
            _halving(),
            conv_norm(64, 64),
            conv_norm(64, 192, 3),
        ]
        channels = 192
        for rows in GROUPS:
            layers.append(_halving())
            for row in rows:
                layers.append(_module(channels, row))
                channels = row.out_channels
        super().__init__(*layers, classifier(channels, num_classes))
        self.apply(initialize)


MODELS: tuple[Model, ...] = (
    Model(
        name="googlenet",
        title="GoogLeNet",
        source='Szegedy et al., "Going Deeper with Convolutions", CVPR 2015',
        n_parameters=6_624_904,
        inference=image_form("", GoogLeNet, 224),
        training=(cifar10_form(partial(GoogLeNet, num_classes=10), 32),),
    ),
)
