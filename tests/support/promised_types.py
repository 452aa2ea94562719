"""Runs a graph and checks that each operator returns what its fake tensor says."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from nimble_fx.torch_internals.memory_formats import suggested_format


class _Checked(Interpreter):
    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            assert list(map(_type, _tensors(result))) == list(
                map(_type, _tensors(n.meta.get("val")))
            ), n
        return result


class _Formats(Interpreter):
    """Collects the nodes whose results have another memory format than their fake tensors.

    An image of a single pixel is in both formats.
    """

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.differing: list[Node] = []

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        # of a value and the views that correct it, the last one counts
        views = (torch.ops.aten.permute.default, torch.ops.aten.select.int)
        is_last = not any(user.target in views for user in n.users)
        is_last &= any(user.op != "output" for user in n.users)  # what is returned is eager's
        is_value = n.op == "call_function" and is_last and isinstance(result, Tensor)
        is_value = is_value and not all(size == 1 for size in result.shape[2:])
        if is_value and suggested_format(result) != suggested_format(n.meta["val"]):
            self.differing.append(n)
        return result


def run_with_formats(gm: GraphModule, *arguments: Any) -> tuple[Any, list[Node]]:
    """The graph's outputs, and the nodes whose results have other memory formats than promised."""
    gm.graph.lint()
    run = _Formats(gm)
    with torch.no_grad():
        return run.run(*arguments), run.differing


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
