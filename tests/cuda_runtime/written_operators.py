"""Operators that have a CUDA kernel and no CPU kernel, out of operators that have both.

Results that nobody needs for a value, such as a random state, are left out or None.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _depthwise_convolution(
    x: Tensor,
    weight: Tensor,
    _kernel_size: list[int],
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Any:
    zeros = [0] * len(stride)
    return aten.convolution(x, weight, bias, stride, padding, dilation, False, zeros, x.shape[1])


def _lstm_cell(
    gates: Tensor,
    hidden: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    total = gates + hidden
    for bias in (input_bias, hidden_bias):
        total = total if bias is None else total + bias
    i, f, g, o = total.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    _has_bias: bool,
) -> tuple[Tensor, ...]:
    i, f, g, o = workspace.chunk(4, 1)
    t = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    d = grad_hy * o * (1 - t * t) + (0 if grad_cy is None else grad_cy)
    gates = [d * g * i * (1 - i), d * cx * f * (1 - f), d * i * (1 - g * g)]
    grad_gates = torch.cat([*gates, grad_hy * t * o * (1 - o)], 1)
    return grad_gates, d * f, grad_gates.sum(0)


def _rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = (x.square().mean([*range(-len(shape), 0)], keepdim=True) + eps).rsqrt()
    return (x * rstd if weight is None else x * rstd * weight), rstd


WRITTEN: dict[str, Callable[..., Any]] = {
    "_conv_depthwise2d": _depthwise_convolution,
    "conv_depthwise3d": _depthwise_convolution,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_fused_rms_norm": _rms_norm,
}
