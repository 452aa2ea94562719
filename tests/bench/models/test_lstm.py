"""The unrolled LSTM against PyTorch's."""

import torch
from torch import nn

from bench.models.lstm import Cell, LSTMStack


@torch.no_grad()
def test_it_computes_what_torchs_lstm_does() -> None:
    stack, reference = LSTMStack(layers=3, width=8), nn.LSTM(8, 8, num_layers=3, batch_first=True)
    for layer, cell in enumerate(stack.cells):
        assert isinstance(cell, Cell)
        names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        values = (*cell.from_input.parameters(), cell.from_output.weight, torch.zeros(32))
        for name, value in zip(names, values, strict=True):
            reference.get_parameter(f"{name}_l{layer}").copy_(value)
    sequence = torch.randn(2, 5, 8)
    torch.testing.assert_close(stack(sequence), reference(sequence)[0])
