"""The state of a model and its inputs, bit by bit."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.support.bits import bytes_of


def bits(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else bytes_of(tensor)


def snapshot(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """The bits of all that preparing must leave alone."""
    state = {name: bits(value) for name, value in model.state_dict().items()}
    grads = [(id(p.grad), bits(p.grad)) for p in model.parameters()]
    given = [bits(x) for x in inputs] + [bits(x.grad) for x in inputs]
    return state, grads, given, torch.get_rng_state().tolist(), model.training
