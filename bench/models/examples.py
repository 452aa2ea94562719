"""A model of the zoo that is built and fed: the same weights and inputs in every run."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.models.model import Inputs
from bench.models.registry import find


@dataclass(frozen=True)
class Example:
    """A model in evaluation mode and inputs for it, on a device.

    Attributes:
        title: what a person calls it: "NASNet-A mobile, 224 x 224, batch 1, cpu".
        model: the model.
        inputs: a set of positional arguments.
    """

    title: str
    model: nn.Module
    inputs: Inputs

    def run(self) -> Tensor:
        """The model's output, as PyTorch computes it by itself."""
        output: Tensor = self.model(*self.inputs)
        return output


def example(name: str, batch: int | None = None, device: str | torch.device = "cpu") -> Example:
    """A model in its form for inference, with the same weights and inputs each time.

    Args:
        name: as in `registry.find`.
        batch: the batch size; None for the model's own.
        device: where.
    """
    model = find(name)
    form = model.inference
    torch.manual_seed(0)
    built, size = form.build().eval().to(device), batch or form.batches[0]
    inputs = tuple(x.to(device) for x in form.inputs(size))
    return Example(f"{model.title}, {form.title}, batch {size}, {device}", built, inputs)
