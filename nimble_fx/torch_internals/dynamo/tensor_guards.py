"""PyTorch's guards of tensors: a fast comparison with the types that tensors had before."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import lookup

COMPARE_STRIDES_OF_WEIGHTS = torch.__version__ >= "2.12"
"""Whether Dynamo's own guards of parameters and buffers compare strides."""

_DISPATCH_KEYS = (
    " (another device or layout, an inference tensor, or a view that conjugates or negates)"
)
_TensorGuards = lookup("torch._C._dynamo.guards.TensorGuards")


class TensorGuards:
    """Compares tensors with those that it was made with.

    They must have the same class, dispatch keys, dtype, device, `requires_grad`, shape and strides,
    and be distinct objects where those were. Cost: 0.05 microseconds a tensor.

    Attributes:
        check: takes as many tensors, as arguments; returns whether they fit.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        positions = {id(tensor): i for i, tensor in reversed(list(enumerate(tensors)))}
        self._distinct = sorted(positions.values())
        self._same = [(i, positions[id(tensor)]) for i, tensor in enumerate(tensors)]
        distinct = [tensors[i] for i in self._distinct]
        guards: Any = _TensorGuards(
            *distinct,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in distinct],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in distinct],
        )
        self._check_distinct: Callable[..., bool] = guards.check
        are_distinct = len(distinct) == len(tensors)
        self.check = self._check_distinct if are_distinct else self._check_some_same
        self._explain = guards.check_verbose

    def difference(self, tensors: Sequence[Tensor], names: Sequence[str]) -> str | None:
        """How tensors differ, which have these names in the text; None if they do not."""
        if self.check(*tensors):
            return None
        text: str = self._explain(*tensors, tensor_check_names=list(names))
        hint = _DISPATCH_KEYS if "dispatch key set mismatch" in text else ""
        return text.replace(" type, ' but", " type, but") + hint  # PyTorch forgot the other quote

    def _check_some_same(self, *tensors: Tensor) -> bool:
        are_same = all(tensors[i] is tensors[first] for i, first in self._same)
        return are_same and self._check_distinct(*[tensors[i] for i in self._distinct])
