"""The sparse network against dense matrices."""

import pytest
import torch

from bench.models.sparse_dnn import MODELS, SparseDNN, SparseLayer, connections


def _dense(layer: SparseLayer) -> torch.Tensor:
    """The layer's matrix, element by element from its compressed rows."""
    matrix = torch.zeros(1024, 1024)
    offsets, columns = layer.offsets.tolist(), layer.columns.tolist()
    for row in range(1024):
        for k in range(offsets[row], offsets[row + 1]):
            matrix[row, columns[k]] += layer.values[k].detach()
    return matrix


@pytest.mark.parametrize("stride", [1, 32])
def test_a_layer_is_the_product_with_its_matrix(stride: int) -> None:
    layer, y = SparseLayer(stride), torch.rand(1024, 3)
    torch.nn.init.normal_(layer.values)
    expected = (_dense(layer) @ y - 0.3).clamp(0.0, 32.0)
    torch.testing.assert_close(layer(y), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 32])
def test_each_neuron_reads_32_others_and_is_read_by_32(stride: int) -> None:
    columns = connections(stride)
    assert all(len(set(row)) == 32 and row == sorted(row) for row in columns.tolist())
    assert torch.bincount(columns.flatten(), minlength=1024).eq(32).all()


def test_two_layers_lead_from_every_neuron_to_every_other_by_one_path() -> None:
    paths = _dense(SparseLayer(32)) @ _dense(SparseLayer(1)) * 256
    assert paths.eq(1).all()


def test_some_samples_live_through_all_layers_and_some_die() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        alive = SparseDNN()(*MODELS[0].inference.inputs(64)).any(dim=1)
    assert 10 < alive.sum() < 54
