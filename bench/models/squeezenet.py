"""SqueezeNet 1.1, with random weights: `squeezenet1_1`.

Source: Iandola, Han, Moskewicz, Ashraf, Dally, Keutzer, "SqueezeNet: AlexNet-level accuracy with
50x fewer parameters and <0.5MB model size", arXiv:1602.07360: figure 1 (the Fire module), figure 2
left (the network). Version 1.1 is its authors' own revision, with the same accuracy: a smaller
first convolution (64 of 3x3 for 96 of 7x7) and earlier poolings. There is no batch norm.
"""

from functools import partial

from torch import nn

from bench.models.layers import Branches, initialize
from bench.models.model import Model, cifar10_form, image_form

STEM_CHANNELS = 64

# The Fire modules as (channels of the squeeze, channels of each expand); a pooling before each
# group halves the image.
GROUPS = (
    ((16, 64), (16, 64)),
    ((32, 128), (32, 128)),
    ((48, 192), (48, 192), (64, 256), (64, 256)),
)


def _convolution(in_channels: int, out_channels: int, size: int = 1) -> nn.Sequential:
    """Convolution, ReLU: (N, in, H, W) -> (N, out, H, W)."""
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, size, padding=size // 2), nn.ReLU())


def _fire(in_channels: int, squeezed: int, expanded: int) -> nn.Sequential:
    """Squeeze, then two expanding branches: (N, in, H, W) -> (N, 2 expanded, H, W)."""
    return nn.Sequential(
        _convolution(in_channels, squeezed),
        Branches(_convolution(squeezed, expanded), _convolution(squeezed, expanded, 3)),
    )


class SqueezeNet(nn.Sequential):
    """SqueezeNet 1.1: (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 32."""

    def __init__(self, num_classes: int = 1000) -> None:
        channels = STEM_CHANNELS
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, stride=2), nn.ReLU()]
        for group in GROUPS:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            for squeezed, expanded in group:
                layers.append(_fire(channels, squeezed, expanded))
                channels = 2 * expanded
        layers.append(_convolution(channels, num_classes))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.apply(initialize)


MODELS: tuple[Model, ...] = (
    Model(
        name="squeezenet1_1",
        title="SqueezeNet 1.1",
        source='Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and '
        '<0.5MB model size", arXiv:1602.07360',
        n_parameters=1_235_496,
        inference=image_form("", SqueezeNet, 224),
        training=(cifar10_form(partial(SqueezeNet, num_classes=10), 32),),
    ),
)
