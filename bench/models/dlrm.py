"""Facebook's recommendation model with 26 tables, with random weights: `dlrm`.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", arXiv:1906.00091, 2019: figure 1 and section 2 (the model), section 5 (the widths of the
two perceptrons for Criteo's data set of 13 dense and 26 categorical features).

The tables are of moderate size, `ROWS` each: Criteo's reach ten million rows. Embeddings are as
wide as the bottom perceptron's last layer. The output is a logit: the paper's sigmoid belongs to
the loss.
"""

import torch
from torch import Tensor, nn

from bench.models.mlp import mlp
from bench.models.model import Form, Inputs, Model, mean_square

DENSE, TABLES, ROWS, WIDTH = 13, 26, 10_000, 64
BAG = 4
"""The indices that a table is asked for at once, for one example."""

_VECTORS = TABLES + 1
_PAIRS = _VECTORS * (_VECTORS - 1) // 2


class Interaction(nn.Module):
    """The dot products of all pairs: (batch, n, width) -> (batch, n * (n - 1) / 2)."""

    pairs: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        first, second = torch.tril_indices(n, n, -1)
        self.register_buffer("pairs", first * n + second, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        products = vectors @ vectors.transpose(1, 2)
        return products.flatten(1).index_select(1, self.pairs)


def _table() -> nn.EmbeddingBag:
    """Initialized so that the dot products of bags are about 1."""
    table = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
    nn.init.normal_(table.weight, std=WIDTH**-0.25 * BAG**-0.5)
    return table


class DLRM(nn.Module):
    """Dense features (batch, DENSE), indices (TABLES, batch, BAG) int64 -> logits (batch, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(mlp(DENSE, 512, 256, WIDTH), nn.ReLU())
        self.tables = nn.ModuleList(_table() for _ in range(TABLES))
        self.interaction = Interaction(_VECTORS)
        self.top = mlp(WIDTH + _PAIRS, 512, 256, 1)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        processed: Tensor = self.bottom(dense)
        bags = [table(bag) for table, bag in zip(self.tables, indices.unbind(), strict=True)]
        pairs = self.interaction(torch.stack([processed, *bags], dim=1))
        logits: Tensor = self.top(torch.cat([processed, pairs], dim=1))
        return logits


def _inputs(batch: int) -> Inputs:
    return torch.randn(batch, DENSE), torch.randint(ROWS, (TABLES, batch, BAG))


_FORM = Form(
    title=f"{TABLES} tables of {ROWS:,} x {WIDTH}",
    build=DLRM,
    inputs=_inputs,
    output_shape=lambda batch: (batch, 1),
    batches=(128,),
    loss=mean_square,
)

_BOTTOM = (DENSE + 1) * 512 + 513 * 256 + 257 * WIDTH
_TOP = (WIDTH + _PAIRS + 1) * 512 + 513 * 256 + 257

MODELS: tuple[Model, ...] = (
    Model(
        name="dlrm",
        title="DLRM",
        source="Naumov et al., arXiv:1906.00091, 2019",
        n_parameters=TABLES * ROWS * WIDTH + _BOTTOM + _TOP,
        inference=_FORM,
        training=(_FORM,),
    ),
)
