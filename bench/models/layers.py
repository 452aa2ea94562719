"""What several convolutional networks share: their layers, and how these are initialized.

Dropout and stochastic depth are in none of them: neither is part of a model at inference, and in
training a comparison of two runs needs one that draws no masks.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]
"""What makes an activation; `nn.Identity` for none."""

_BRANCH_SCALE = 0.2


def conv_norm(
    in_channels: int,
    out_channels: int,
    size: int | tuple[int, int] = 1,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    activation: Activation = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm, activation: (N, in, H, W) -> (N, out, H/stride, W/stride).

    Args:
        in_channels: those of the input.
        out_channels: those of the output.
        size: of the kernel: one number, or height and width.
        stride: in both directions; H and W are rounded up.
        padding: at each side; None: as much as keeps the size at stride 1.
        groups: of channels; as many as there are channels for a depthwise convolution.
        activation: what comes last.
    """
    height, width = (size, size) if isinstance(size, int) else size
    around = (height // 2, width // 2) if padding is None else (padding, padding)
    kernel = (height, width)
    convolution = nn.Conv2d(
        in_channels, out_channels, kernel, stride, around, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), activation())


def classifier(channels: int, num_classes: int) -> nn.Sequential:
    """The mean over the image, then a linear layer: (N, channels, H, W) -> (N, num_classes)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


class Branches(nn.Module):
    """Branches of one input, concatenated: (N, C, H, W) -> (N, sum of the branches' C, H', W')."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Residual(nn.Module):
    """A branch plus a shortcut, then the activation: (N, C, H, W) -> (N, C', H', W').

    Args:
        branch: Its last batch norm scales what it adds.
        shortcut: What brings the input to the branch's shape.
        activation: Of the sum.
    """

    def __init__(
        self,
        branch: nn.Module,
        shortcut: nn.Module | None = None,
        activation: Activation = nn.Identity,
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return result


def initialize(module: nn.Module) -> None:
    """For `nn.Module.apply`: He initialization, and residual branches that add little.

    Batch norm with the statistics of a new model normalizes nothing at inference: branches that
    add as much as they are given would double the variance in each of a hundred layers.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, Residual):
        norms = [part for part in module.branch.modules() if isinstance(part, nn.BatchNorm2d)]
        nn.init.constant_(norms[-1].weight, _BRANCH_SCALE)
