"""A multilayer perceptron, as recommendation models end in."""

from itertools import pairwise

from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with a ReLU between two: (batch, widths[0]) -> (batch, widths[-1]).

    He initialization: with PyTorch's default the output is ten to thirty times smaller.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
