"""Each argument of a convolution has the name that PyTorch's function has for it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nimble_fx.rewrites.folding.convolution import Convolution
from tests.support.schedules import aten_graph


def arguments_of(function: object, *inputs: Tensor) -> Convolution:
    gm = aten_graph(function, *inputs)  # type: ignore[arg-type]
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    return Convolution.of(node)


def test_they_are_as_passed() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, (2, 3), (1, 0), (1, 2), groups=2)

    found = arguments_of(function, torch.ones(1, 4, 9, 9), torch.ones(6, 2, 3, 3), torch.ones(6))
    assert found.bias is not None
    names = [node.name for node in (found.x, found.weight, found.bias)]
    assert names == ["x_1", "weight_1", "bias_1"]
    assert (found.stride, found.padding, found.dilation) == ([2, 3], [1, 0], [1, 2])
    assert (found.is_transposed, found.output_padding, found.n_groups) == (False, [0, 0], 2)


def test_so_are_those_of_a_transposed_one_without_bias() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv_transpose1d(x, weight, stride=3, padding=1, output_padding=2)

    found = arguments_of(function, torch.ones(1, 4, 9), torch.ones(4, 2, 3))
    assert found.bias is None
    assert (found.stride, found.padding, found.dilation) == ([3], [1], [1])
    assert (found.is_transposed, found.output_padding, found.n_groups) == (True, [2], 1)
