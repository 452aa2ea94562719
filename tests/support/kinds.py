"""The kinds of models that are made from a module."""

from typing import Any

import torch
from torch import Tensor, nn


def exported(model: nn.Module, x: Tensor) -> Any:
    return torch.export.export(model, (x,))


def graph_module(model: nn.Module, x: Tensor) -> Any:
    return torch.fx.symbolic_trace(model)


def scripted(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.script(model)


def jit_traced(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.trace(model, (x,))
