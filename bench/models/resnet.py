"""ResNet for ImageNet, with random weights: `resnet50` and `resnet101`.

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016: table 1
(the stages), figure 5 right (the bottleneck), section 3.3 option B (projections where the shape
changes). One thing differs, as in most implementations since ("v1.5"): a stage's stride is that of
its first 3x3 convolution, where the paper has it in the 1x1 before. The parameters are the same.

In training on CIFAR-10 it is the same network with ten classes, not the small one of section 4.2.
"""

from functools import partial

from torch import nn

from bench.models.layers import Residual, classifier, conv_norm, initialize
from bench.models.model import Model, cifar10_form, image_form

EXPANSION = 4
"""A bottleneck's output channels, in multiples of its width."""


def bottleneck(in_channels: int, width: int, stride: int = 1) -> Residual:
    """1x1, 3x3, 1x1 convolutions: (N, in, H, W) -> (N, 4 width, H/stride, W/stride)."""
    out_channels = EXPANSION * width
    branch = nn.Sequential(
        conv_norm(in_channels, width),
        conv_norm(width, width, 3, stride),
        conv_norm(width, out_channels, activation=nn.Identity),
    )
    if in_channels == out_channels and stride == 1:
        return Residual(branch, activation=nn.ReLU)
    projection = conv_norm(in_channels, out_channels, stride=stride, activation=nn.Identity)
    return Residual(branch, projection, nn.ReLU)


class ResNet(nn.Sequential):
    """ResNet: (batch, 3, H, W) float32 -> logits (batch, num_classes).

    Args:
        blocks: How many bottlenecks each stage has. Each stage is twice as wide as the last; all
            but the first halve the image.
        num_classes: The classes.
    """

    def __init__(self, blocks: tuple[int, ...], num_classes: int = 1000) -> None:
        channels, width = 64, 64
        layers: list[nn.Module] = [conv_norm(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
        for stage, n_blocks in enumerate(blocks):
            for block in range(n_blocks):
                stride = 2 if stage and not block else 1
                layers.append(bottleneck(channels, width, stride))
                channels = EXPANSION * width
            width *= 2
        super().__init__(*layers, classifier(channels, num_classes))
        self.apply(initialize)


resnet50 = partial(ResNet, (3, 4, 6, 3))
resnet101 = partial(ResNet, (3, 4, 23, 3))

SOURCE = 'He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016'

MODELS: tuple[Model, ...] = (
    Model(
        name="resnet50",
        title="ResNet-50",
        source=SOURCE,
        n_parameters=25_557_032,
        inference=image_form("", resnet50, 224),
        training=tuple(cifar10_form(partial(resnet50, num_classes=10), s) for s in (32, 64, 128)),
    ),
    Model(
        name="resnet101",
        title="ResNet-101",
        source=SOURCE,
        n_parameters=44_549_160,
        inference=image_form("", resnet101, 224),
        training=(cifar10_form(partial(resnet101, num_classes=10), 32),),
    ),
)
