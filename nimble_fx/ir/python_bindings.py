"""The fastest function that calls an operator: its binding in `torch` where the two agree.

A binding such as `torch.relu` parses arguments in C++, without a list of boxed values, and takes a
quarter less of a small operator's time. But it has its own signature, whose defaults may differ
from the schema's: `torch.kl_div` has reduction 0 where the schema has 1. So only the operators
listed here are called by their binding. The tests show for each, in each version of PyTorch, that
both call the same kernels with the same arguments.
"""

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch

from nimble_fx.torch_internals.names import OpOverload

_LISTED = """
    _adaptive_avg_pool2d _embedding_bag _embedding_bag_forward_only _log_softmax
    _log_softmax_backward_data _native_batch_norm_legit_no_training _softmax
    _softmax_backward_data abs abs_ addmm amax amin as_strided bmm cat clone constant_pad_nd
    convolution cos_ cumsum detach embedding exp_ gather index_select log_ logical_not maximum
    minimum mm native_dropout native_group_norm native_layer_norm neg_ permute reciprocal
    reciprocal_ relu relu_ rsqrt rsqrt_ sigmoid sigmoid_ sin_ sqrt_ stack t tanh_ tril triu
    unsqueeze zero_
"""
SAME_BY_BINDING = frozenset(_LISTED.split())
"""ATen operators that models often call and whose binding does the same."""


def fastest_binding(op: OpOverload) -> Callable[..., Any]:
    """The `torch` binding of a listed operator; else the dispatcher's function, unwrapped."""
    return binding(op) or op.op


def binding(op: OpOverload) -> Callable[..., Any] | None:
    """`torch.relu` for `aten.relu.default`; None for an operator that is not listed.

    None too where this version of PyTorch has several overloads: the binding would choose one.
    """
    name = op.overloadpacket.__name__
    if op.namespace != "aten" or name not in SAME_BY_BINDING:
        return None
    overloads = [overload for overload in op.overloadpacket.overloads() if "out" not in overload]
    found = getattr(torch, name, None)
    return found if overloads == ["default"] and isinstance(found, BuiltinFunctionType) else None
