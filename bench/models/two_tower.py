"""Two towers for the retrieval of videos, with random weights: `two_tower`.

Source: Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
RecSys 2019: sections 3 and 5 (a tower for the query and one for the candidate; identifiers of the
same kind share a table; outputs are normalized, scores divided by a temperature; the other
candidates of the batch are the negatives). The perceptrons' widths and the history of 50 videos
are those of Covington, Adams, Sargin, "Deep Neural Networks for YouTube Recommendations", RecSys
2016, sections 3.3 and 3.5.

Vocabularies and embeddings are of moderate size, our own choice. The correction for popular
candidates, a constant of the data set, is left out.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from bench.models.mlp import mlp
from bench.models.model import Form, Inputs, Model

VOCABULARIES = {"video": 100_000, "channel": 10_000, "topic": 1_000, "country": 200, "language": 80}
QUERY = ("video", "channel", "country", "language")
"""What is known of a query beside the history: of the video that is on, and of the user."""
CANDIDATE = ("video", "channel", "topic")
HISTORY = 50
WIDTH, HIDDEN, OUTPUT = 64, (1024, 512), 256
TEMPERATURE = 0.05


def _table(size: int) -> nn.Embedding:
    """Of 1 / sqrt(WIDTH), so that an embedding's length is 1."""
    table = nn.Embedding(size, WIDTH)
    nn.init.normal_(table.weight, std=WIDTH**-0.5)
    return table


class TwoTower(nn.Module):
    """Queries and candidates -> the score of each query with each candidate (batch, batch)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({kind: _table(n) for kind, n in VOCABULARIES.items()})
        self.query = mlp((len(QUERY) + 1) * WIDTH, *HIDDEN, OUTPUT)
        self.candidate = mlp(len(CANDIDATE) * WIDTH, *HIDDEN, OUTPUT)

    def _embed(self, kinds: tuple[str, ...], identifiers: Tensor) -> list[Tensor]:
        """Identifiers (kinds, batch) -> for each kind, (batch, WIDTH)."""
        pairs = zip(kinds, identifiers.unbind(), strict=True)
        return [self.tables[kind](column) for kind, column in pairs]

    def forward(self, query: Tensor, history: Tensor, candidate: Tensor) -> Tensor:
        """Scores of a cosine divided by the temperature.

        Args:
            query: (len(QUERY), batch) int64.
            history: (batch, HISTORY) int64, the videos that were seen last.
            candidate: (len(CANDIDATE), batch) int64.
        """
        seen = embedding_bag(history, self.tables["video"].get_parameter("weight"), mode="mean")
        queries = self.query(torch.cat([seen, *self._embed(QUERY, query)], dim=1))
        candidates = self.candidate(torch.cat(self._embed(CANDIDATE, candidate), dim=1))
        return normalize(queries) @ normalize(candidates).T / TEMPERATURE


def _identifiers(kinds: tuple[str, ...], batch: int) -> Tensor:
    return torch.stack([torch.randint(VOCABULARIES[kind], (batch,)) for kind in kinds])


def _inputs(batch: int) -> Inputs:
    history = torch.randint(VOCABULARIES["video"], (batch, HISTORY))
    return _identifiers(QUERY, batch), history, _identifiers(CANDIDATE, batch)


# In training a query's own candidate is that of its place in the batch: the label of
# `classification`, the usual loss.
_FORM = Form(
    title=f"history of {HISTORY}",
    build=TwoTower,
    inputs=_inputs,
    output_shape=lambda batch: (batch, batch),
    batches=(128,),
)

_TOWERS = sum(
    (inputs * WIDTH + 1) * HIDDEN[0] + (HIDDEN[0] + 1) * HIDDEN[1] + (HIDDEN[1] + 1) * OUTPUT
    for inputs in (len(QUERY) + 1, len(CANDIDATE))
)

MODELS: tuple[Model, ...] = (
    Model(
        name="two_tower",
        title="Two-tower retrieval",
        source="Yi et al., RecSys 2019; Covington et al., RecSys 2016",
        n_parameters=sum(VOCABULARIES.values()) * WIDTH + _TOWERS,
        inference=_FORM,
        training=(_FORM,),
    ),
)
