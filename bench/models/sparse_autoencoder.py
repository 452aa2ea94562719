"""An autoencoder of the films that a person rated, with random weights: `sparse_autoencoder`.

Source: Amazon, "DSSTNE: Deep Scalable Sparse Tensor Network Engine",
github.com/amazon-archives/amazon-dsstne, 2016. The configuration is that of its example,
docs/getting_started/examples.md and src/amazon/dsstne/samples/config.json, for MovieLens 20M: one
hidden layer of 128 units between an input and an output of 27,278 films (that number is in
benchmarks/Benchmark.md), all sigmoid, in batches of 256.

An input of ones and zeros is given as the indices of its ones, whose rows of the input layer's
weights are summed. The example's noise on inputs and penalty for density are of training's loss,
and are left out.
"""

import torch
from torch import Tensor, nn

from bench.models.model import Form, Inputs, Model, mean_square

FILMS, HIDDEN = 27_278, 128
RATED = 144
"""The films that a person rated: MovieLens 20M has 20,000,263 ratings by 138,493 people."""


class SparseAutoencoder(nn.Module):
    """Indices of films (batch, rated) int64 -> a score of 0 to 1 for each (batch, FILMS)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.EmbeddingBag(FILMS, HIDDEN, mode="sum")
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.decode = nn.Linear(HIDDEN, FILMS)
        # The sum of a person's films has a variance of 1: the sigmoid is not saturated.
        nn.init.normal_(self.encode.weight, std=RATED**-0.5)

    def forward(self, films: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.encode(films) + self.bias)
        return torch.sigmoid(self.decode(hidden))


def _inputs(batch: int) -> Inputs:
    """Different films for a person."""
    return (torch.rand(batch, FILMS).topk(RATED).indices,)


def _form(batches: tuple[int, ...]) -> Form:
    return Form(
        title="MovieLens 20M",
        build=SparseAutoencoder,
        inputs=_inputs,
        output_shape=lambda batch: (batch, FILMS),
        batches=batches,
        loss=mean_square,
    )


MODELS: tuple[Model, ...] = (
    Model(
        name="sparse_autoencoder",
        title="Sparse autoencoder",
        source="Amazon DSSTNE, 2016",
        n_parameters=FILMS * HIDDEN + HIDDEN + HIDDEN * FILMS + FILMS,
        inference=_form((1,)),
        training=(_form((256,)),),
    ),
)
