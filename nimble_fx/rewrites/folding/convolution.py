"""The arguments of a convolution by name; ATen's operator takes nine by position."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, cast

import torch
from torch.fx import Graph, Node


class Convolution(NamedTuple):
    """What `aten.convolution` takes.

    Attributes:
        x: the image, or a signal or volume: batch, channels, and one to three more dimensions.
        weight: the filters: channels of the result, channels of the image by group, and the kernel.
        bias: one number for each channel of the result; or None.
        stride, padding, dilation: a number for each dimension of the kernel, or one for all.
        is_transposed: whether it is a transposed convolution, with other dimensions of the weight.
        output_padding: of a transposed one.
        n_groups: the number of groups of channels.
    """

    x: Node
    weight: Node
    bias: Node | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    is_transposed: bool
    output_padding: Sequence[int]
    n_groups: int

    @staticmethod
    def of(node: Node) -> "Convolution":
        """The arguments of a call of `aten.convolution`."""
        return Convolution(*cast(Sequence[object], node.args))  # type: ignore[arg-type]


def convolutions_in_calls(graph: Graph, fixed: Collection[Node]) -> list[Node]:
    """The convolutions with fixed weights that are computed in each call.

    Args:
        graph: an ATen graph.
        fixed: nodes that are computed outside of the calls.
    """
    found = graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    return [n for n in found if Convolution.of(n).weight in fixed and n not in fixed]
