"""Runs a graph and checks that each operator returns what its fake tensor says."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree


class _Checked(Interpreter):
    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            assert list(map(_type, _tensors(result))) == list(
                map(_type, _tensors(n.meta.get("val")))
            ), n
        return result


def run_as_promised(gm: GraphModule, *arguments: Any) -> Any:
    """The graph's outputs; shapes, strides and dtypes between are those of `meta["val"]`.

    But for the strides of dimensions of one element, and of tensors without elements: of these
    PyTorch's fake tensors say others than its operators return.
    """
    gm.graph.lint()
    with torch.no_grad():
        return _Checked(gm).run(*arguments)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _type(tensor: Tensor) -> tuple[object, ...]:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [stride for n, stride in pairs if n != 1] if tensor.numel() else []
    return tensor.shape, strides, tensor.dtype
