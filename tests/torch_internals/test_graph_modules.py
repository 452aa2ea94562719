"""Graph modules apart from their graphs."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

from nimble_fx.torch_internals.graph_modules import calls, function_of


class Model(nn.Module):
    """Reads a buffer, and a parameter of a module within it."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Buffer(torch.arange(3.0))
        self.inner = nn.LayerNorm(3)

    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return x * self.inner.weight + torch.mul(self.offset, scale)


def test_the_function_does_what_the_module_does_and_outlives_it() -> None:
    gm, x = symbolic_trace(Model()), torch.randn(3)
    expected = gm(x, scale=3.0)
    function, graph, module = function_of(gm), weakref.ref(gm.graph), weakref.ref(gm)
    del gm
    gc.collect()
    assert graph() is None
    assert module() is None
    assert torch.equal(function(x, scale=3.0), expected)


@pytest.mark.parametrize("call", [torch.relu, lambda x: x.relu(), torch.ops.aten.relu.default])
def test_calls_are_found_by_name_whatever_is_called(call: Callable[[Tensor], Tensor]) -> None:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return call(x) + 1

    gm = symbolic_trace(Calls())
    assert calls(gm, "relu")
    assert not calls(gm, "rel")
