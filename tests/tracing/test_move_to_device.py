"""CPU operands of GPU operators are copied to the GPU first, with the same results."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.tracing.move_to_device import is_on_cpu, move_to_device, other_device
from tests.support.bits import assert_same_bits
from tests.support.two_devices import GPU, graph_of, with_values

Z = torch.arange(12.0).view(3, 4)
ROWS, COLUMNS = torch.tensor([2, 0, -1]), torch.tensor([1, 1, 3])
SMALL, WHOLE = torch.tensor(0.1), torch.tensor(3)

TAKE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "indices": (lambda z, i, j: z[i, j], (ROWS, COLUMNS)),
    "some indices": (lambda z, i: z[:, i.abs()], (ROWS,)),
    "where to write": (lambda z, i: z.index_put((i,), z), (ROWS,)),
    "a number to write": (lambda z, i, s: z.index_put((i,), s), (ROWS, SMALL)),
    "a factor": (lambda z, s: z * s, (SMALL,)),
    "a factor of integers": (lambda z, s: z.long() * s, (SMALL,)),
    "a factor of another type": (lambda z, s: z.half() * s, (WHOLE.double(),)),
    "an integer": (lambda z, s: z / s, (WHOLE,)),
    "bounds": (lambda z, a, b: z.clamp(a, b), (SMALL, WHOLE)),
    "a choice": (lambda z, s: torch.where(z > s, z, s), (WHOLE,)),
    "a weight": (lambda z, s: torch.lerp(z, z + 1, s), (SMALL,)),
    "to fill with": (lambda z, s: torch.fill(z, s), (SMALL,)),
    "to fill a part with": (lambda z, s: z.masked_fill(z > 3, s), (SMALL,)),
    "to copy": (lambda z, row: z.clone().copy_(row), (Z[0],)),
    "explicitly": (lambda z, row: z + row.to(z.device), (Z[0],)),
    "twice": (lambda z, s: (z * s) + s, (SMALL,)),
    "computed": (lambda z, s: z * (s + 1), (SMALL,)),
    "made there": (lambda z: z[torch.arange(2)] * torch.tensor(2.0), ()),
}
"""What a GPU takes from the CPU."""


def copies(gm: GraphModule) -> list[str]:
    nodes = gm.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default)
    return [node.all_input_nodes[0].name for node in nodes if node.meta["val"].device == GPU]


@pytest.mark.parametrize("name", TAKE)
def test_only_copies_take_from_the_cpu_and_all_computes_the_same(name: str) -> None:
    function, values = TAKE[name]
    gm = graph_of(function, [Z], values)
    before = {n.name: n.meta["val"].dtype for n in gm.graph.nodes if n.op == "call_function"}
    assert other_device(gm) == GPU
    move_to_device(gm)
    for node in gm.graph.nodes:
        if node.op == "call_function" and not is_on_cpu(node):
            takes = [arg.name for arg in node.all_input_nodes if is_on_cpu(arg)]
            is_copy = node.target is torch.ops.aten._to_copy.default
            assert is_copy or not takes, node.format_node()
    assert_same_bits(with_values(gm)(Z, *values), function(Z, *values))
    assert (
        before.items()
        <= {n.name: n.meta["val"].dtype for n in gm.graph.nodes if n.op == "call_function"}.items()
    )


def test_what_is_used_twice_is_copied_once() -> None:
    assert copies(move_to_device(graph_of(TAKE["twice"][0], [Z], [SMALL]))) == ["s_1"]


def test_what_is_written_between_two_uses_is_copied_twice() -> None:
    function: Any = lambda z, s: (z * s, s.view(1).add_(1), z * s)  # noqa: E731
    gm = graph_of(function, [Z], [SMALL], functional=False)
    ours, theirs = SMALL.clone(), SMALL.clone()
    assert_same_bits(list(with_values(move_to_device(gm))(Z, ours)), list(function(Z, theirs)))


def test_a_graph_of_one_device_stays_as_it_is() -> None:
    for on_gpu, on_cpu in ([[Z, SMALL], []], [[], [Z, SMALL]]):
        gm = graph_of(lambda z, s: z * s, on_gpu, on_cpu)
        before = str(gm.graph)
        assert other_device(gm) is None
        assert str(move_to_device(gm).graph) == before
