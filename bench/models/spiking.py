"""A spiking network of leaky integrate-and-fire neurons, stepped through time: `spiking_lif`.

Source: Neftci, Mostafa, Zenke, "Surrogate Gradient Learning in Spiking Neural Networks", IEEE
Signal Processing Magazine 36(6), 2019: section "Mapping to RNNs" (the neuron in discrete time),
"Surrogate gradient methods" (a smooth derivative in place of the step's). The surrogate is the
fast sigmoid of Zenke, Ganguli, "SuperSpike", Neural Computation 30(6), 2018.

Every layer steps as soon as the layer before it has, so layers at different times can overlap.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from bench.models.model import Form, Model

WIDTHS = (784, 1024, 1024, 1024, 10)
STEPS = 25
DECAY = 0.9
"""How much of a neuron's potential is left after a step."""

THRESHOLD = 1.0
"""The potential at which a neuron fires, and that it loses by firing."""

STEEPNESS = 25.0
"""Of the fast sigmoid, whose derivative is 1 / (1 + STEEPNESS |u|)^2."""


def spikes_of(potential: Tensor, training: bool) -> Tensor:
    """1 where the potential (batch, neurons) reaches the threshold, else 0.

    Args:
        potential: of the neurons.
        training: whether there is to be a gradient: that of a fast sigmoid, not that of a step.
    """
    excess = potential - THRESHOLD
    hard = (excess >= 0).to(excess.dtype)
    if not training:
        return hard
    soft = excess / (1.0 + STEEPNESS * excess.abs())
    return hard + (soft - soft.detach())


class LeakyLayer(nn.Module):
    """Synapses and their neurons: spikes (batch, in) and potential (batch, out) of one step."""

    def __init__(self, n_inputs: int, n_neurons: int) -> None:
        super().__init__()
        self.synapses = nn.Linear(n_inputs, n_neurons)
        # Twice as strong as for unit variance: with PyTorch's default, deep layers never fire.
        nn.init.normal_(self.synapses.weight, std=2.0 * n_inputs**-0.5)

    def forward(self, spikes: Tensor, potential: Tensor) -> tuple[Tensor, Tensor]:
        """The neurons' spikes, and their potential after them; both (batch, out)."""
        charged = DECAY * potential + self.synapses(spikes)
        fired = spikes_of(charged, self.training)
        return fired, charged - THRESHOLD * fired


class SpikingNetwork(nn.Module):
    """Trains of spikes (STEPS, batch, 784), 0 or 1 -> how often each class fired (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LeakyLayer(*widths) for widths in pairwise(WIDTHS))

    def forward(self, trains: Tensor) -> Tensor:
        batch = trains.shape[1]
        potentials = [trains.new_zeros(batch, width) for width in WIDTHS[1:]]
        counts = trains.new_zeros(batch, WIDTHS[-1])
        for spikes in trains.unbind():
            for i, layer in enumerate(self.layers):
                spikes, potentials[i] = layer(spikes, potentials[i])
            counts = counts + spikes
        return counts


def _trains(batch: int) -> tuple[Tensor]:
    """Spikes (STEPS, batch, 784) of neurons that fire at rates of their own, up to 0.5."""
    rates = 0.5 * torch.rand(batch, WIDTHS[0])
    return ((torch.rand(STEPS, batch, WIDTHS[0]) < rates).float(),)


def _form(batch: int) -> Form:
    return Form(
        title=f"{STEPS} steps",
        build=SpikingNetwork,
        inputs=_trains,
        output_shape=lambda batch: (batch, WIDTHS[-1]),
        batches=(batch,),
    )


MODELS: tuple[Model, ...] = (
    Model(
        name="spiking_lif",
        title="Spiking LIF network, 784-1024-1024-1024-10",
        source="Neftci, Mostafa, Zenke, Surrogate Gradient Learning in Spiking Neural Networks, "
        "IEEE Signal Processing Magazine 2019",
        n_parameters=785 * 1024 + 2 * 1025 * 1024 + 1025 * 10,
        inference=_form(1),
        training=(_form(128),),
    ),
)
