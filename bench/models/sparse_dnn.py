"""The sparse deep neural network of GraphChallenge, 1024 neurons in 120 layers.

Source: Kepner, Alford, Gadepally, Jones, Milechin, Robinett, Samsi, "Sparse Deep Neural Network
Graph Challenge", HPEC 2019: the inference computation, and the smallest of the networks. The
connections are those of a RadiX-Net with the radices 32 and 32: Robinett, Kepner, "RadiX-Net:
Structured Sparse Matrices for Deep Neural Networks", IPDPSW 2019, mixed-radix topologies.

As in the challenge, a sample either dies out or saturates after a few layers. Inputs here are dense
by chance enough for about half of them to live, where the challenge has thresholded digits.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from bench.models.model import Form, Model

N_NEURONS, N_LAYERS, N_CONNECTIONS = 1024, 120, 32
WEIGHT, BIAS, CEILING = 1 / 16, -0.3, 32.0


def connections(stride: int) -> Tensor:
    """What each neuron reads: (neurons, connections) numbers of neurons, ascending in each row.

    The reads are `stride` apart and wrap around.
    """
    neurons = torch.arange(N_NEURONS).unsqueeze(1)
    columns = (neurons + stride * torch.arange(N_CONNECTIONS)) % N_NEURONS
    return columns.sort(dim=1).values


class SparseLayer(nn.Module):
    """min(max(W y + b, 0), 32) of a sparse W: (neurons, batch) -> (neurons, batch).

    W is in compressed rows: the values (neurons * connections,) of all rows, their columns, and
    the offsets (neurons + 1,) at which rows begin and end.
    """

    columns: Tensor
    offsets: Tensor

    def __init__(self, stride: int) -> None:
        super().__init__()
        columns = connections(stride).flatten()
        offsets = torch.arange(0, columns.numel() + 1, N_CONNECTIONS)
        self.register_buffer("columns", columns.to(torch.int32))
        self.register_buffer("offsets", offsets.to(torch.int32))
        self.values = nn.Parameter(torch.full(columns.shape, WEIGHT))

    def forward(self, y: Tensor) -> Tensor:
        # A bag that sums rows of y by weight is a row of W times y, in one kernel.
        product = embedding_bag(
            self.columns,
            y,
            self.offsets,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )
        return (product + BIAS).clamp(0.0, CEILING)


class SparseDNN(nn.Module):
    """Features (batch, neurons) -> activity of the last layer (batch, neurons), 0 to 32."""

    def __init__(self) -> None:
        super().__init__()
        strides = (1, N_CONNECTIONS)
        self.layers = nn.Sequential(*(SparseLayer(strides[i % 2]) for i in range(N_LAYERS)))

    def forward(self, features: Tensor) -> Tensor:
        activity: Tensor = self.layers(features.t().contiguous())
        return activity.t()


def _features(batch: int) -> tuple[Tensor]:
    """Rows (batch, neurons) of 0 and 1, each with a density of its own up to 0.6."""
    density = 0.6 * torch.rand(batch, 1)
    return ((torch.rand(batch, N_NEURONS) < density).float(),)


MODELS: tuple[Model, ...] = (
    Model(
        name="sparse_dnn_1024x120",
        title="Sparse DNN, 1024 neurons x 120 layers",
        source="Kepner et al., Sparse Deep Neural Network Graph Challenge, HPEC 2019",
        n_parameters=120 * 1024 * 32,
        inference=Form(
            title="64 samples",
            build=SparseDNN,
            inputs=_features,
            output_shape=lambda batch: (batch, N_NEURONS),
            batches=(64,),
        ),
    ),
)
