"""The operations of the cells that architecture searches found: convolutions and pooling.

Source: the search space of Zoph, Vasudevan, Shlens, Le, "Learning Transferable Architectures for
Scalable Image Recognition", CVPR 2018, section 3; AmoebaNet and DARTS chose from it too. Each
operation brings (N, in, H, W) to (N, out, H / stride, W / stride), sizes rounded up.
"""

from collections.abc import Callable
from functools import partial

from torch import nn


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm with the epsilon of NASNet."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)


def pointwise(in_channels: int, out_channels: int) -> nn.Sequential:
    """ReLU, 1x1 convolution, batch norm: (N, in, H, W) -> (N, out, H, W)."""
    convolution = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    return nn.Sequential(nn.ReLU(), convolution, batch_norm(out_channels))


def _separable(size: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """A separable convolution, applied twice as in the paper; only the first one has the stride.

    Each: ReLU, depthwise convolution, pointwise convolution, batch norm.
    """
    layers: list[nn.Module] = []
    for width, step in ((in_channels, stride), (out_channels, 1)):
        depthwise = nn.Conv2d(width, width, size, step, size // 2, groups=width, bias=False)
        mixing = nn.Conv2d(width, out_channels, 1, bias=False)
        layers += [nn.ReLU(), depthwise, mixing, batch_norm(out_channels)]
    return nn.Sequential(*layers)


def _dilated(size: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """A separable convolution of every second pixel, applied once."""
    depthwise = nn.Conv2d(
        in_channels,
        in_channels,
        size,
        stride,
        padding=size - 1,
        dilation=2,
        groups=in_channels,
        bias=False,
    )
    mixing = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    return nn.Sequential(nn.ReLU(), depthwise, mixing, batch_norm(out_channels))


def _row_then_column(size: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """A 1 x size, then a size x 1 convolution, on a quarter of the output channels."""
    width, pad = out_channels // 4, size // 2
    row = nn.Conv2d(width, width, (1, size), (1, stride), (0, pad), bias=False)
    column = nn.Conv2d(width, width, (size, 1), (stride, 1), (pad, 0), bias=False)
    layers: list[nn.Module] = [pointwise(in_channels, width)]
    for convolution in (row, column):
        layers += [nn.ReLU(), convolution, batch_norm(width)]
    return nn.Sequential(*layers, pointwise(width, out_channels))


def _pooling(
    pool: Callable[[int], nn.Module], in_channels: int, out_channels: int, stride: int
) -> nn.Module:
    """Pooling; a 1x1 convolution and batch norm after it where the channels change."""
    if in_channels == out_channels:
        return pool(stride)
    convolution = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    return nn.Sequential(pool(stride), convolution, batch_norm(out_channels))


# From input channels, output channels and stride.
OPERATIONS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "identity": lambda _in, _out, _stride: nn.Identity(),
    "avg_3x3": partial(_pooling, lambda s: nn.AvgPool2d(3, s, 1, count_include_pad=False)),
    "max_3x3": partial(_pooling, lambda s: nn.MaxPool2d(3, s, 1)),
    "sep_3x3": partial(_separable, 3),
    "sep_5x5": partial(_separable, 5),
    "sep_7x7": partial(_separable, 7),
    "dil_3x3": partial(_dilated, 3),
    "1x7_7x1": partial(_row_then_column, 7),
}
