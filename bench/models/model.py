"""What is known of a model that is measured: how to build it, what to feed it, where it is from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
"""A model's positional arguments."""


def classification(logits: Tensor) -> Tensor:
    """Cross entropy of logits (batch, classes) with the labels 0, 1, 2, ...; a scalar."""
    batch, classes = logits.shape
    labels = torch.arange(batch, device=logits.device) % classes
    return nn.functional.cross_entropy(logits, labels)


def mean_square(output: Tensor) -> Tensor:
    """The mean square of a model's output; a scalar."""
    return output.square().mean()


@dataclass(frozen=True)
class Form:
    """A model as it is used: for inference, or in training.

    Attributes:
        title: what sets this form apart from others: "224 x 224", "CIFAR-10, 32 x 32".
        build: makes the model, with weights from torch's random generator.
        inputs: makes a set of inputs of a batch size, on the default device, from torch's
            generator.
        output_shape: of the one tensor that the model returns, for a batch size.
        batches: the batch sizes that are measured unless others are asked for.
        loss: of the output, in training; a scalar.
    """

    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    output_shape: Callable[[int], tuple[int, ...]]
    batches: tuple[int, ...] = (1,)
    loss: Callable[[Tensor], Tensor] = classification


@dataclass(frozen=True)
class Model:
    """A model of the zoo.

    Attributes:
        name: what it is called on a command line.
        title: what a person calls it.
        source: the paper that it is written from.
        n_parameters: how many parameters the paper's form has, by the paper or by arithmetic.
        inference: what is measured in inference.
        training: what is measured in training; no dropout, whose masks would differ in float64.
    """

    name: str
    title: str
    source: str
    n_parameters: int
    inference: Form
    training: tuple[Form, ...] = ()


def image_form(
    title: str,
    build: Callable[[], nn.Module],
    size: int,
    classes: int = 1000,
    batches: tuple[int, ...] = (1,),
) -> Form:
    """A classifier of images (batch, 3, size, size) float32 -> logits (batch, classes)."""
    return Form(
        title=f"{title}{size} x {size}",
        build=build,
        inputs=lambda batch: (torch.randn(batch, 3, size, size),),
        output_shape=lambda batch: (batch, classes),
        batches=batches,
    )


def cifar10_form(build: Callable[[], nn.Module], size: int) -> Form:
    """Training on images of CIFAR-10's ten classes, in batches of 32 as Nimble's paper has it."""
    return image_form("CIFAR-10, ", build, size, classes=10, batches=(32,))
