"""RandWire-WS for ImageNet in the small regime: stages wired by a random graph.

Source: Xie, Kirillov, Girshick, He, "Exploring Randomly Wired Neural Networks for Image
Recognition", ICCV 2019: section 3.2 and figure 2 (from a graph to a network), section 3.3 (the
Watts-Strogatz graphs), table 1 (the stages of the small regime). No dropout, no edges dropped.

The paper's networks are samples of a generator; this one is the sample of `SEEDS`.
"""

from collections.abc import Sequence
from functools import partial

import networkx as nx
import torch
from torch import Tensor, nn

from bench.models.model import Model, cifar10_form, image_form

N_NODES, DEGREE, REWIRED = 32, 4, 0.75
"""N, K and P of the generator WS(K, P)."""

SEEDS = (0, 1, 2)
"""Of the graphs of the three random stages."""


def watts_strogatz(seed: int) -> list[list[int]]:
    """For each node of a random graph, those that it reads: edges go from low to high numbers."""
    graph: nx.Graph[int] = nx.watts_strogatz_graph(N_NODES, DEGREE, REWIRED, seed=seed)
    return [sorted(u for u in graph[v] if u < v) for v in range(N_NODES)]


def _triplet(convolution: nn.Conv2d) -> nn.Sequential:
    """ReLU, the convolution, batch norm."""
    return nn.Sequential(nn.ReLU(), convolution, nn.BatchNorm2d(convolution.out_channels))


class Node(nn.Module):
    """Weighted sum, ReLU, separable 3x3 convolution, batch norm.

    n_edges tensors (N, in, H, W) -> (N, out, H / stride, W / stride).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, n_edges: int) -> None:
        super().__init__()
        # What an input of the stage reads comes along no edge of the graph and has no weight.
        self.weights = nn.Parameter(torch.zeros(n_edges)) if n_edges else None
        depthwise = nn.Conv2d(
            in_channels, in_channels, 3, stride, 1, groups=in_channels, bias=False
        )
        pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.transform = nn.Sequential(
            nn.ReLU(), depthwise, pointwise, nn.BatchNorm2d(out_channels)
        )

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        total = inputs[0]
        if self.weights is not None:
            gates = torch.sigmoid(self.weights).unbind()
            total = gates[0] * inputs[0]
            for gate, x in zip(gates[1:], inputs[1:], strict=True):
                total = total + gate * x
        result: Tensor = self.transform(total)
        return result


class Stage(nn.Module):
    """A random graph as a network: (N, in, H, W) -> (N, out, H / 2, W / 2).

    Nodes that read no other node read the stage's input, and have the stride; the output is the
    mean of the nodes that no other one reads.
    """

    def __init__(self, graph: list[list[int]], in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.graph = graph
        read = {u for sources in graph for u in sources}
        self.last = [v for v in range(len(graph)) if v not in read]
        self.nodes = nn.ModuleList(
            Node(out_channels if sources else in_channels, out_channels, 1 if sources else 2, n)
            for sources in graph
            for n in [len(sources)]
        )

    def forward(self, x: Tensor) -> Tensor:
        states: list[Tensor] = []
        for node, sources in zip(self.nodes, self.graph, strict=True):
            states.append(node([states[u] for u in sources] if sources else [x]))
        total = states[self.last[0]]
        for v in self.last[1:]:
            total = total + states[v]
        return total / len(self.last)


def _initialize(module: nn.Module) -> None:
    """He initialization with the gain of a ReLU twice in a node: for its ReLU, and for its sum.

    A node reads two others on average, each weighed by a half at first: that halves the variance.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


class RandWire(nn.Module):
    """RandWire: (batch, 3, H, W) float32 -> logits (batch, num_classes); H, W >= 32.

    Args:
        channels: C, of the first random stage; the next ones have 2 C and 4 C.
        num_classes: The classes.
    """

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        half = channels // 2
        self.stem = nn.Sequential(
            nn.Conv2d(3, half, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(half),
            _triplet(nn.Conv2d(half, channels, 3, stride=2, padding=1, bias=False)),
        )
        widths = (channels, channels, 2 * channels, 4 * channels)
        self.stages = nn.Sequential(
            *(Stage(watts_strogatz(s), *widths[i : i + 2]) for i, s in enumerate(SEEDS))
        )
        self.head = nn.Sequential(
            _triplet(nn.Conv2d(widths[-1], 1280, 1, bias=False)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(1280, num_classes),
        )
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(self.stem(x)))
        return logits


def randwire_ws(num_classes: int = 1000) -> RandWire:
    """RandWire-WS(4, 0.75), C = 78, for inputs (batch, 3, 224, 224)."""
    return RandWire(78, num_classes)


MODELS: tuple[Model, ...] = (
    Model(
        name="randwire_ws",
        title="RandWire-WS (4, 0.75), C=78",
        source="Xie, Kirillov, Girshick, He, Exploring Randomly Wired Neural Networks for Image "
        "Recognition, ICCV 2019",
        # By arithmetic, see tests/bench/models/test_randwire.py; the paper's have 5.6 million on
        # average, with a standard deviation of 0.1 million.
        n_parameters=5_651_947,
        inference=image_form("", randwire_ws, 224),
        training=(cifar10_form(partial(randwire_ws, 10), 32),),
    ),
)
