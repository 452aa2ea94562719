"""The sparse autoencoder against dense products."""

import torch
from torch.nn.functional import one_hot

from bench.models.sparse_autoencoder import FILMS, SparseAutoencoder


@torch.no_grad()
def test_indices_stand_for_an_input_of_ones_and_zeros() -> None:
    model = SparseAutoencoder()
    films = torch.tensor([[5, 27_000, 17], [0, 1, FILMS - 1]])
    x = one_hot(films, FILMS).sum(1).float()
    hidden = torch.sigmoid(x @ model.encode.weight + model.bias)
    expected = torch.sigmoid(hidden @ model.decode.weight.T + model.decode.bias)
    torch.testing.assert_close(model(films), expected)
