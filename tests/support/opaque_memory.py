"""An operator that crashes the process on made-up values: it reads what only its forward writes."""

from typing import Any

import torch
from torch import Tensor

LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default


def lstm_backward(slopes: Tensor) -> Any:
    """The gradients of an LSTM's layer for those of its outputs: steps, batch, features."""
    return LSTM_BACKWARD(*made_up_arguments(slopes))


def made_up_arguments(slopes: Tensor) -> tuple[Any, ...]:
    """Its arguments, with a workspace of the size that PyTorch promises: real ones are larger."""
    _, n_rows, n_features = slopes.shape
    x, state = torch.ones_like(slopes), torch.ones(1, n_rows, n_features)
    weight, bias = torch.ones(4 * n_features, n_features), torch.ones(4 * n_features)
    forward = (x, weight, weight, bias, bias, state, state, x, state, state)
    layer: tuple[Any, ...] = (False, 2, n_features, 1, True, True, False, [], False)
    workspace = torch.empty(0, dtype=torch.uint8)
    return (*forward, slopes, state, state, *layer, workspace)
