"""DeepFM for the 39 fields of Criteo's data set, with random weights: `deepfm`.

Source: Guo, Tang, Ye, Li, He, "DeepFM: A Factorization-Machine based Neural Network for CTR
Prediction", IJCAI 2017: figure 1 and equations 1 to 4 (the model; the factorization machine and
the perceptron share the embeddings), section 3.1 (400-400-400, embeddings of 10). The second-order
term is computed as in Rendle, "Factorization Machines", ICDM 2010, lemma 3.1.

Vocabularies are of moderate size. A numeric field is an index too, of its bucket. There is no
dropout. The output is a logit: the paper's sigmoid belongs to the loss.
"""

import torch
from torch import Tensor, nn

from bench.models.mlp import mlp
from bench.models.model import Form, Inputs, Model, mean_square

FIELDS = (100,) * 13 + (10_000,) * 26
"""The vocabulary of each field: 13 numeric ones in buckets, 26 categories."""
WIDTH = 10


def second_order(embeddings: Tensor) -> Tensor:
    """The sum over pairs of fields of their dot product: (batch, fields, width) -> (batch, 1)."""
    of_sum = embeddings.sum(1).square()
    return (of_sum - embeddings.square().sum(1)).sum(1, keepdim=True) / 2


def _table(size: int, width: int) -> nn.Embedding:
    """Initialized so that the two terms of the factorization machine are of magnitude 1."""
    table = nn.Embedding(size, width)
    nn.init.normal_(table.weight, std=len(FIELDS) ** -0.5)
    return table


class DeepFM(nn.Module):
    """Indices, one of each field: (fields, batch) int64 -> logits (batch, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ModuleList(_table(size, 1) for size in FIELDS)
        self.embeddings = nn.ModuleList(_table(size, WIDTH) for size in FIELDS)
        self.deep = mlp(len(FIELDS) * WIDTH, 400, 400, 400, 1)

    def forward(self, indices: Tensor) -> Tensor:
        fields = indices.unbind()
        weights = [table(field) for table, field in zip(self.weights, fields, strict=True)]
        embeddings = torch.stack(
            [table(field) for table, field in zip(self.embeddings, fields, strict=True)], dim=1
        )
        first_order = torch.cat(weights, dim=1).sum(1, keepdim=True)
        deep: Tensor = self.deep(embeddings.flatten(1))
        return first_order + second_order(embeddings) + deep


def _inputs(batch: int) -> Inputs:
    return (torch.stack([torch.randint(size, (batch,)) for size in FIELDS]),)


_FORM = Form(
    title=f"{len(FIELDS)} fields",
    build=DeepFM,
    inputs=_inputs,
    output_shape=lambda batch: (batch, 1),
    batches=(128,),
    loss=mean_square,
)

_DEEP = (len(FIELDS) * WIDTH + 1) * 400 + 2 * 401 * 400 + 401

MODELS: tuple[Model, ...] = (
    Model(
        name="deepfm",
        title="DeepFM",
        source="Guo et al., IJCAI 2017",
        n_parameters=sum(FIELDS) * (1 + WIDTH) + _DEEP,
        inference=_FORM,
        training=(_FORM,),
    ),
)
