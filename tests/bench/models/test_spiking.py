"""The spiking network against its equations, one neuron at a time."""

import pytest
import torch

from bench.models.spiking import LeakyLayer, SpikingNetwork, spikes_of


def test_a_neuron_leaks_fires_at_the_threshold_and_loses_it() -> None:
    layer = LeakyLayer(1, 1).eval()
    torch.nn.init.constant_(layer.synapses.weight, 0.6)
    torch.nn.init.zeros_(layer.synapses.bias)
    potential, fired = torch.zeros(1, 1), []
    for _ in range(4):
        spikes, potential = layer(torch.ones(1, 1), potential)
        fired.append(spikes.item())
    # 0.6, 1.14 fires, 0.14 * 0.9 + 0.6 = 0.726, 1.2534 fires.
    assert fired == [0.0, 1.0, 0.0, 1.0]
    assert potential.item() == pytest.approx(0.2534)


def test_the_gradient_of_a_spike_is_that_of_a_fast_sigmoid() -> None:
    potential = torch.linspace(-1.0, 3.0, 9).unsqueeze(0).requires_grad_()
    spikes = spikes_of(potential, training=True)
    assert torch.equal(spikes, spikes_of(potential, training=False))
    (gradient,) = torch.autograd.grad(spikes.sum(), potential)
    torch.testing.assert_close(gradient, (1 + 25 * (potential - 1).abs()).square().reciprocal())


def test_every_layer_fires_at_some_times_only() -> None:
    torch.manual_seed(0)
    model, rates = SpikingNetwork().eval(), []
    for layer in model.layers:
        layer.register_forward_hook(lambda _layer, _x, out: rates.append(out[0].mean().item()))
    model((torch.rand(25, 4, 784) < 0.25).float())
    assert all(0.05 < sum(rates[i::4]) / 25 < 0.6 for i in range(4))
