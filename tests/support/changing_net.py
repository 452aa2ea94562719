"""A model that reads changing state, its changes, inputs, and states of PyTorch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

DEVICES: list[dict[str, Any]] = [{"fold_weights": True}, {"device": "virtual", "seed": 3}]


class Net(nn.Module):
    """Reads what may change between calls: modules, tensors, numbers, the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(4))
        self.scale = 2.0

    def forward(self, x: Tensor, others: dict[str, list[Tensor]]) -> dict[str, Any]:
        left = torch.relu(self.a(x)) * self.scale + self.shift
        right = self.b(others["y"][0]) + (1 if self.training else 0)
        return {"sum": left + right, "parts": [left, (right,)]}


Change = Callable[[Net], object]


def new_weight(net: Net) -> None:
    net.a.weight = nn.Parameter(torch.randn_like(net.a.weight))


def new_memory(net: Net) -> None:
    net.a.weight.data = torch.randn_like(net.a.weight)


def new_layer(net: Net) -> None:
    net.a = nn.Linear(4, 4).to(net.shift.dtype).train(net.training)


def tied(net: Net) -> None:
    first: Any = net.b[0]
    net.a.weight = first.weight


CHANGES: dict[str, Change] = {
    "nothing": lambda net: None,
    "a weight in place": lambda net: net.a.weight.data.add_(0.5),
    "a new weight": new_weight,
    "a weight in other memory": new_memory,
    "a new layer": new_layer,
    "layers the other way round": lambda net: setattr(net, "a", net.b[0]),
    "tied weights": tied,
    "a new layer in a container": lambda net: net.b.__setitem__(0, nn.Linear(4, 4)),
    "a number": lambda net: setattr(net, "scale", net.scale + 1),
    "a buffer": lambda net: setattr(net, "shift", torch.randn_like(net.shift)),
    "training": lambda net: net.train(),
    "evaluation": lambda net: net.eval(),
    "part of the mode": lambda net: net.b.train(),
    "loaded": lambda net: net.load_state_dict({k: v * 0.9 for k, v in net.state_dict().items()}),
    "no gradients for it": lambda net: net.a.requires_grad_(False),
    "no bias": lambda net: setattr(net.a, "bias", None),
    "another forward": lambda net: setattr(net.a, "forward", torch.sin),
}

INPUTS: dict[str, Callable[[Tensor, Tensor], tuple[Any, ...]]] = {
    "plain": lambda x, y: (x, {"y": [y]}),
    "other values": lambda x, y: (x + 1, {"y": [y * 2]}),
    "other sizes": lambda x, y: (x[:2], {"y": [y[:2]]}),
    "other strides": lambda x, y: (x.t(), {"y": [y.t()]}),
    "a view": lambda x, y: (torch.cat([x, x])[4:], {"y": [y]}),
    "the same twice": lambda x, y: (x, {"y": [x]}),
    "more in a list": lambda x, y: (x, {"y": [y, x]}),
    "with gradients": lambda x, y: (x.clone().requires_grad_(), {"y": [y]}),
    "a subclass": lambda x, y: (nn.Parameter(x), {"y": [y]}),
}

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "none": nullcontext,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
