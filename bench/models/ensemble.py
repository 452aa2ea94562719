"""A deep ensemble of eight small convolutional networks, with random weights: `ensemble_8`.

Source: Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation
using Deep Ensembles", NeurIPS 2017: section 2.4 and algorithm 1 (networks that differ in their
initialization see the same input, their predictions are averaged), section 3.4 (a VGG-style
network). It averages probabilities; here it is the logits, so that the usual loss applies. The
paper does not give the networks' widths: these are our own.
"""

import torch
from torch import Tensor, nn

from bench.models.model import Model, cifar10_form, image_form

MEMBERS, SIZE, CLASSES = 8, 32, 10
STAGES = ((3, 32), (32, 64), (64, 128))
"""The channels before and after each stage, which halves the image."""


def _convolution(in_channels: int, out_channels: int) -> nn.Sequential:
    """3x3 convolution, batch norm, ReLU: (N, in, H, W) -> (N, out, H, W)."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU())


def _member() -> nn.Sequential:
    """A small VGG: images (batch, 3, H, W) -> logits (batch, CLASSES); H, W >= 8."""
    layers: list[nn.Module] = []
    for before, after in STAGES:
        layers += [_convolution(before, after), _convolution(after, after), nn.MaxPool2d(2)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1][1], CLASSES)]
    return nn.Sequential(*layers)


def _initialize(module: nn.Module) -> None:
    """He initialization: with PyTorch's default the logits hardly differ between images."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


class Ensemble(nn.Module):
    """Images (batch, 3, SIZE, SIZE) -> the members' mean logits (batch, CLASSES)."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(_member() for _ in range(MEMBERS))
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([member(images) for member in self.members]).mean(0)


_MEMBER = sum(
    9 * (before + after) * after + 2 * 2 * after for before, after in STAGES
) + CLASSES * (STAGES[-1][1] + 1)

MODELS: tuple[Model, ...] = (
    Model(
        name="ensemble_8",
        title=f"Ensemble of {MEMBERS} small convolutional networks",
        source="Lakshminarayanan et al., NeurIPS 2017",
        n_parameters=MEMBERS * _MEMBER,
        inference=image_form("", Ensemble, SIZE, classes=CLASSES),
        training=(cifar10_form(Ensemble, SIZE),),
    ),
)
