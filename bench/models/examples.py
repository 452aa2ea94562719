"""Models by name, with random weights and inputs that are the same in every run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.models.nasnet import nasnet_a_large, nasnet_a_mobile

_NASNET: Mapping[str, tuple[str, Callable[[], nn.Module], int]] = {
    "mobile": ("NASNet-A mobile", nasnet_a_mobile, 224),
    "large": ("NASNet-A large", nasnet_a_large, 331),
}
NASNET_NAMES = tuple(_NASNET)


@dataclass(frozen=True)
class Example:
    """A model in evaluation mode and an input for it, on the device that is there.

    Attributes:
        title: what a person calls it: "NASNet-A mobile, 1 x 3 x 224 x 224, cpu".
        model: the model.
        x: images (batch, 3, size, size), float32.
    """

    title: str
    model: nn.Module
    x: Tensor

    def run(self) -> Tensor:
        """The model's output, as PyTorch computes it by itself."""
        output: Tensor = self.model(self.x)
        return output


def default_device() -> torch.device:
    """The first CUDA device where there is one, else the CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def nasnet(name: str, size: int | None = None, batch: int = 1, seed: int = 0) -> Example:
    """NASNet-A "mobile" or "large" with weights and an input drawn from `seed`.

    Args:
        name: one of `NASNET_NAMES`.
        size: height and width of the images; None for those of the paper.
        batch: how many images.
        seed: of the random weights and the input.
    """
    title, build, usual_size = _NASNET[name]
    device, size = default_device(), size or usual_size
    torch.manual_seed(seed)
    model = build().eval()
    x = torch.randn(batch, 3, size, size)
    return Example(
        f"{title}, {batch} x 3 x {size} x {size}, {device}", model.to(device), x.to(device)
    )
