"""HRNet for ImageNet, the small one, with random weights: `hrnet_w18_small`.

Source: Wang, Sun, Cheng, Jiang, Deng, Zhao, Liu, Mu, Tan, Wang, Liu, Xiao, "Deep High-Resolution
Representation Learning for Visual Recognition", TPAMI 2020: figures 2 and 3 (parallel resolutions
and how they are exchanged), section 3 (the network), appendix (the head for classification). The
small model is the one that the authors released as HRNet-W18-C-Small-v1, whose highest resolution
has 16 channels, not 18.

`torch.compile` makes nine operators of each `nn.Upsample`: a gather, and eight for its indices, 80
of 395 at inference, none of them on the longest path. Operators over longest path, where batch
norms, activations and additions count with what they follow, is 4.2 with them and 3.0 without.

A feature pyramid is a list of tensors, (N, C, H, W), (N, 2C, H/2, W/2), (N, 4C, H/4, W/4) and so
on; its resolutions are computed side by side.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from bench.models.layers import Residual, classifier, conv_norm, initialize
from bench.models.model import Model, cifar10_form, image_form
from bench.models.resnet import EXPANSION, bottleneck

STEM_CHANNELS = 64
FIRST_WIDTH = 32
"""The width of the bottleneck that is the first stage, of one resolution."""

RESOLUTIONS = (2, 3, 4)
"""How many resolutions the other stages have, of one module each."""
HIGHEST_CHANNELS = 16
"""The channels of their highest resolution; each lower one has twice as many."""
BLOCKS = 2
"""The residual blocks of each of a module's resolutions."""

HEAD_WIDTHS = (32, 64, 128, 256)
"""The widths of the bottlenecks that widen the four resolutions for the classifier."""
LAST_CHANNELS = 2048


def _block(channels: int) -> Residual:
    """ResNet's basic block, two 3x3 convolutions: (N, C, H, W) -> (N, C, H, W)."""
    branch = nn.Sequential(
        conv_norm(channels, channels, 3),
        conv_norm(channels, channels, 3, activation=nn.Identity),
    )
    return Residual(branch, activation=nn.ReLU)


def _downsampling(in_channels: int, out_channels: int, halvings: int) -> nn.Sequential:
    """Strided 3x3 convolutions: (N, in, H, W) -> (N, out, H / 2^halvings, W / 2^halvings).

    Only the last changes the channels; it has no ReLU, as its result is added to others.
    """
    first = [conv_norm(in_channels, in_channels, 3, stride=2) for _ in range(halvings - 1)]
    last = conv_norm(in_channels, out_channels, 3, stride=2, activation=nn.Identity)
    return nn.Sequential(*first, last)


def _upsampling(in_channels: int, out_channels: int, doublings: int) -> nn.Sequential:
    """1x1 convolution, nearest neighbour: (N, in, H, W) -> (N, out, H 2^doublings, ...)."""
    convolution = conv_norm(in_channels, out_channels, activation=nn.Identity)
    return nn.Sequential(convolution, nn.Upsample(scale_factor=2**doublings, mode="nearest"))


def _path(channels: Sequence[int], source: int, target: int) -> nn.Module:
    """Brings a feature pyramid's resolution `source` to the shape of resolution `target`."""
    if source == target:
        return nn.Identity()
    change = _downsampling if source < target else _upsampling
    return change(channels[source], channels[target], abs(target - source))


class Exchange(nn.Module):
    """Each resolution becomes the sum of all, brought to its shape; then ReLU."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        resolutions = range(len(channels))
        self.paths = nn.ModuleList(
            nn.ModuleList(_path(channels, source, target) for source in resolutions)
            for target in resolutions
        )
        self.relu = nn.ReLU()

    def forward(self, pyramid: list[Tensor]) -> list[Tensor]:
        return [self.relu(_sum(paths, pyramid)) for paths in self.paths]


def _sum(paths: nn.Module, pyramid: list[Tensor]) -> Tensor:
    """The sum of the resolutions, each after its own path; (N, C, H, W)."""
    first, *others = [path(x) for path, x in zip(paths.children(), pyramid, strict=True)]
    total: Tensor = first
    for other in others:
        total = total + other
    return total


class ParallelModule(nn.Module):
    """Residual blocks at each resolution, then an exchange: a feature pyramid -> one alike."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(_block(width) for _ in range(BLOCKS))) for width in channels
        )
        self.exchange = Exchange(channels)

    def forward(self, pyramid: list[Tensor]) -> list[Tensor]:
        branches = zip(self.branches, pyramid, strict=True)
        result: list[Tensor] = self.exchange([branch(x) for branch, x in branches])
        return result


class Transition(nn.Module):
    """Adds a resolution to a feature pyramid: half the lowest, by a strided 3x3 convolution.

    The others get a 3x3 convolution where their channels change.
    """

    def __init__(self, before: Sequence[int], after: Sequence[int]) -> None:
        super().__init__()
        self.kept = nn.ModuleList(
            nn.Identity() if old == new else conv_norm(old, new, 3)
            for old, new in zip(before, after[:-1], strict=True)
        )
        self.added = conv_norm(before[-1], after[-1], 3, stride=2)

    def forward(self, pyramid: list[Tensor]) -> list[Tensor]:
        kept = [keep(x) for keep, x in zip(self.kept, pyramid, strict=True)]
        return [*kept, self.added(pyramid[-1])]


class Head(nn.Module):
    """Widens each resolution, then adds them up from the highest: feature pyramid -> (N, C, H, W).

    H and W are those of the lowest resolution, C is `LAST_CHANNELS`. As released, the convolutions
    outside of the bottlenecks have biases, whose gradients a batch norm makes zero in training.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.widen = nn.ModuleList(map(bottleneck, channels, HEAD_WIDTHS))
        widths = [EXPANSION * width for width in HEAD_WIDTHS]
        self.halve = nn.ModuleList(_biased(*pair, size=3, stride=2) for pair in pairwise(widths))
        self.last = _biased(widths[-1], LAST_CHANNELS)

    def forward(self, pyramid: list[Tensor]) -> Tensor:
        first, *others = [widen(x) for widen, x in zip(self.widen, pyramid, strict=True)]
        for halve, other in zip(self.halve, others, strict=True):
            first = other + halve(first)
        result: Tensor = self.last(first)
        return result


def _biased(in_channels: int, out_channels: int, size: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU: (N, in, H, W) -> (N, out, H/stride, W/stride)."""
    convolution = nn.Conv2d(in_channels, out_channels, size, stride, size // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU())


class HRNet(nn.Module):
    """HRNet-C: (batch, 3, H, W) float32 -> logits (batch, num_classes); 32 divides H, W."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_norm(3, STEM_CHANNELS, 3, stride=2),
            conv_norm(STEM_CHANNELS, STEM_CHANNELS, 3, stride=2),
            bottleneck(STEM_CHANNELS, FIRST_WIDTH),
        )
        channels = [EXPANSION * FIRST_WIDTH]
        self.stages = nn.Sequential()
        for resolutions in RESOLUTIONS:
            after = [HIGHEST_CHANNELS << resolution for resolution in range(resolutions)]
            self.stages.extend((Transition(channels, after), ParallelModule(after)))
            channels = after
        self.head = Head(channels)
        self.classifier = classifier(LAST_CHANNELS, num_classes)
        self.apply(initialize)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.head(self.stages([self.stem(x)])))
        return logits


MODELS: tuple[Model, ...] = (
    Model(
        name="hrnet_w18_small",
        title="HRNet-W18-small",
        source='Wang et al., "Deep High-Resolution Representation Learning for Visual '
        'Recognition", TPAMI 2020',
        n_parameters=13_187_464,
        inference=image_form("", HRNet, 224),
        training=(cifar10_form(partial(HRNet, num_classes=10), 32),),
    ),
)
