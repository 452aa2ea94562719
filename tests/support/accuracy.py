"""PyTorch's own rule for results that rounding may change: as close to float64 as eager is."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import same
from torch.utils import _pytree as pytree


def assert_as_accurate(model: nn.Module, inputs: tuple[Any, ...], results: Any) -> None:
    """Results of a model are as near to float64's as eager's, and of eager's types and strides.

    Args:
        model: in eval mode.
        inputs: of the call that gave the results.
        results: the model's, as a tuple or list.
    """
    with torch.no_grad():
        eager = pytree.tree_leaves(model(*inputs))
        exact = pytree.tree_leaves(copy.deepcopy(model).double()(*_doubled(inputs)))
    ours = pytree.tree_leaves(results)
    assert len(ours) == len(eager)
    assert same(eager, ours, exact, equal_nan=True)
    for result, expected in zip(ours, eager, strict=True):
        if isinstance(expected, Tensor):
            assert (result.shape, result.stride()) == (expected.shape, expected.stride())


def _doubled(values: Any) -> Any:
    return pytree.tree_map_only(
        Tensor, lambda x: x.double() if x.is_floating_point() else x, values
    )
