"""Four layers of LSTM cells, unrolled for 20 steps, with random weights: `lstm_stack`.

Source: Hochreiter, Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997 (the
cell), with the forget gate of Gers, Schmidhuber, Cummins, "Learning to Forget", Neural Computation
12(10), 2000; no peepholes. Four layers as in Sutskever, Vinyals, Le, "Sequence to Sequence
Learning with Neural Networks", NeurIPS 2014, section 3.4, here half as wide.

A cell's products with its input and with its last output are two operators: layer l at step t needs
nothing of layer l + 1 at step t - 1, so the cells of a diagonal can run side by side.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bench.models.model import Form, Model, mean_square

LAYERS, STEPS, WIDTH = 4, 20, 512


class State(NamedTuple):
    """What a cell keeps from step to step; each (batch, width)."""

    output: Tensor
    memory: Tensor


class Cell(nn.Module):
    """One step of a layer: (batch, width) and the state before -> the state after.

    The gates are stacked: input, forget, candidate, output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width, 4 * width)
        self.from_output = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, state: State) -> State:
        gates = self.from_input(x) + self.from_output(state.output)
        enter, keep, candidate, leave = gates.chunk(4, dim=1)
        memory = keep.sigmoid() * state.memory + enter.sigmoid() * candidate.tanh()
        return State(leave.sigmoid() * memory.tanh(), memory)


class LSTMStack(nn.Module):
    """A sequence (batch, steps, width) -> the last layer's outputs, of the same shape."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell(width) for _ in range(layers))
        self.apply(_initialize)

    def forward(self, sequence: Tensor) -> Tensor:
        zeros = torch.zeros_like(sequence[:, 0])
        states = [State(zeros, zeros)] * len(self.cells)
        outputs: list[Tensor] = []
        for x in sequence.unbind(1):
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, states[layer])
                x = states[layer].output
            outputs.append(x)
        return torch.stack(outputs, dim=1)


def _initialize(module: nn.Module) -> None:
    """Twice the usual deviation: with less, each layer's outputs are much smaller than its inputs.

    With PyTorch's default the fourth layer's outputs are 0.01, and differ by 0.003 between inputs.
    """
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=2 * module.in_features**-0.5)


def lstm_stack() -> LSTMStack:
    """`LAYERS` layers for sequences (batch, steps, WIDTH)."""
    return LSTMStack(LAYERS, WIDTH)


def _form(batches: tuple[int, ...]) -> Form:
    return Form(
        title=f"{STEPS} steps",
        build=lstm_stack,
        inputs=lambda batch: (torch.randn(batch, STEPS, WIDTH),),
        output_shape=lambda batch: (batch, STEPS, WIDTH),
        batches=batches,
        loss=mean_square,
    )


MODELS: tuple[Model, ...] = (
    Model(
        name="lstm_stack",
        title=f"LSTM, {LAYERS} layers",
        source="Hochreiter, Schmidhuber, Neural Computation 1997; Sutskever et al., NeurIPS 2014",
        n_parameters=LAYERS * 4 * WIDTH * (WIDTH + WIDTH + 1),
        inference=_form((1,)),
        training=(_form((32,)),),
    ),
)
