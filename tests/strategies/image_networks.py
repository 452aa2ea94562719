"""Small convolutional networks, as users write them."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

SIZE = 6


@dataclass(frozen=True)
class Step:
    """A layer, and which of the values so far it reads.

    Attributes:
        kind: of the layer.
        reads: the positions of the values, counted from the last.
        option: which variant of it.
    """

    kind: str
    reads: tuple[int, int]
    option: int


class ImageNetwork(nn.Module):
    """Applies its steps in order; returns the last value, and some others."""

    def __init__(self, steps: tuple[Step, ...], returned: frozenset[int], n_channels: int) -> None:
        super().__init__()
        self.steps, self.returned = steps, returned
        self.layers = nn.ModuleList(_layer(step, n_channels) for step in steps)
        self.head = nn.Linear(n_channels, 3)

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for step, layer in zip(self.steps, self.layers, strict=True):
            one, other = (values[-1 - r % len(values)] for r in step.reads)
            values.append(_applied(step, layer, one, other))
        results = [value for i, value in enumerate(values) if i in self.returned]
        return self.head(values[-1].mean((2, 3))), values[-1], *results


def _layer(step: Step, n: int) -> nn.Module:
    if step.kind == "convolution":
        return [
            nn.Conv2d(n, n, 3, padding=1, bias=False),
            nn.Conv2d(n, n, 1),
            nn.Conv2d(n, n, 3, padding=1, groups=n),
            nn.ConvTranspose2d(n, n, 3, padding=1),
        ][step.option]
    if step.kind == "norm":
        norm = nn.BatchNorm2d(n, affine=step.option != 1, eps=1e-2 if step.option == 2 else 1e-5)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        return norm
    return nn.Identity()


def _applied(step: Step, layer: nn.Module, one: Tensor, other: Tensor) -> Tensor:
    if step.kind in ("convolution", "norm"):
        result: Tensor = layer(one)
        return result
    if step.kind == "pointwise":
        return [torch.relu(one), torch.sigmoid(one), -one, one.clone()][step.option]
    if step.kind == "two":
        both = torch.cat([one, other], 1)[:, ::2]
        return [one + other, one * other, both, one - 1][step.option]
    if step.kind == "pool":
        is_max = step.option % 2
        pool: Any = nn.functional.max_pool2d if is_max else nn.functional.avg_pool2d
        pooled: Tensor = pool(one, 3, stride=1, padding=1)
        return pooled
    views = [
        one.reshape(one.shape[0], -1).view(one.shape),
        one.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        one.transpose(2, 3),
        one[:, :, 1:],
    ]
    view: Tensor = views[step.option]
    return view if step.option < 3 else nn.functional.pad(views[3], (0, 0, 0, 1))


KINDS = ("convolution", "convolution", "norm", "norm", "pointwise", "two", "pool", "view")


@st.composite
def image_networks(draw: st.DrawFn) -> tuple[ImageNetwork, Tensor]:
    """A network in eval mode, and an input for it."""
    torch.manual_seed(draw(st.integers(0, 99)))
    steps = st.builds(
        Step,
        st.sampled_from(KINDS),
        st.tuples(st.integers(0, 1), st.integers(0, 3)),
        st.integers(0, 3),
    )
    drawn = tuple(draw(st.lists(steps, min_size=1, max_size=8)))
    returned = draw(st.frozensets(st.integers(1, len(drawn)), max_size=2))
    n_channels = draw(st.sampled_from([2, 4, 8]))
    x = torch.randn(draw(st.integers(1, 2)), n_channels, SIZE, SIZE)
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    return ImageNetwork(drawn, returned, n_channels).eval(), x
