"""The models of whole-backend tests: one for each feature of traces."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Branchy(nn.Module):
    """Two branches and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x)) + torch.sigmoid(self.b(x))


class Inception(nn.Module):
    """GoogLeNet's cell: four branches of convolution and BatchNorm, concatenated."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()

        def conv(inside: int, out: int, kernel: int) -> nn.Module:
            pad = kernel // 2
            return nn.Sequential(
                nn.Conv2d(inside, out, kernel, padding=pad), nn.BatchNorm2d(out), nn.ReLU()
            )

        half = channels // 2
        self.one = conv(channels, half, 1)
        self.three = nn.Sequential(conv(channels, half, 1), conv(half, half, 3))
        self.five = nn.Sequential(conv(channels, half, 1), conv(half, half, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, half, 1))
        self.mix = conv(4 * half, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.one(x), self.three(x), self.five(x), self.pool(x)]
        result: Tensor = self.mix(torch.cat(branches, 1))
        return result


class GoogLeNet(nn.Module):
    """A stem, a cell and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.cells = Inception()
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.cells(self.stem(x)).mean((2, 3))
        result: Tensor = self.head(F.dropout(features, 0.0, self.training))
        return result


class Transformer(nn.Module):
    """Embedding, an encoder layer with attention, LayerNorm and GELU."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        result: Tensor = self.encoder(self.embed(tokens) + position[None, :, None] * 0.01)
        return result


class Recurrent(nn.Module):
    """LSTM cells by hand, and two independent stacks of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.LSTMCell(6, 5)
        self.right = nn.LSTMCell(6, 5)

    def forward(self, sequence: Tensor) -> tuple[Tensor, Tensor]:
        left = right = None
        for step in sequence.unbind(1):
            left, right = self.left(step, left), self.right(step, right)
        assert left is not None
        assert right is not None
        return left[0] * right[0], left[1]


class Lstm(nn.Module):
    """PyTorch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        output, (hidden, cell) = self.lstm(sequence)
        result: Tensor = output.sum(1) + hidden[-1] * cell[-1]
        return result


class Dropout(nn.Module):
    """Random draws on independent branches."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 6)
        self.right = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        left = F.dropout(self.left(x), 0.5, self.training)
        right = F.dropout(self.right(x), 0.3, self.training)
        return left * right + torch.rand_like(x)


class Cache(nn.Module):
    """A key-value cache: buffers written in place at an index that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(3, 8, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.keys: Tensor
        self.steps: Tensor
        self.keys.index_copy_(1, position, self.project(x))
        self.steps += 1
        return self.keys.sum(1) + self.keys.amax(1)


class Views(nn.Module):
    """Views of views, pieces, an in-place write through one, aliasing and repeated outputs."""

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        a, b, c = torch.tensor_split(x * 2, (2, 5), dim=1)
        y = torch.cat([c, a.t().t(), b], 1).clone()
        y[:, 1:3].mul_(3)
        y.view(-1)[::2].add_(1)
        return y, y[0], x, a, a, None, 7, b.flip(0).topk(2)[1]


class Tables(nn.Module):
    """Many embedding tables: the widest of graphs."""

    def __init__(self, n: int = 12) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 4) for _ in range(n))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)


class Mutates(nn.Module):
    """Writes into its own input after having read it on another branch."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        read = torch.tanh(x).sum(0) + y
        x.mul_(2).add_(y)
        return read * x


@dataclass(frozen=True)
class Case:
    """A model and a set of inputs for it."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    trainable: bool = True


CASES: dict[str, Case] = {
    "branchy": Case(Branchy, lambda: (torch.randn(2, 4),)),
    "googlenet": Case(GoogLeNet, lambda: (torch.randn(2, 3, 16, 16),)),
    "transformer_dropout": Case(lambda: Transformer(0.1), lambda: (torch.randint(50, (2, 7)),)),
    "recurrent": Case(Recurrent, lambda: (torch.randn(2, 2, 6),)),
    "lstm": Case(Lstm, lambda: (torch.randn(2, 4, 6),), trainable=False),
    "dropout": Case(Dropout, lambda: (torch.randn(3, 6),)),
    "cache": Case(Cache, lambda: (torch.randn(3, 1, 4), torch.tensor([2])), trainable=False),
    "views": Case(Views, lambda: (torch.randn(3, 6),), trainable=False),
    "tables": Case(Tables, lambda: (torch.randint(20, (5, 12)),)),
    "mutates": Case(Mutates, lambda: (torch.randn(3, 4), torch.randn(4)), trainable=False),
}

LARGE = frozenset({"googlenet", "recurrent", "transformer_dropout"})
"""Those that take seconds to compile: tests of them are slow ones."""
