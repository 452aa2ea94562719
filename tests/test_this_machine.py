"""The target of `torch.compile`."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.boxed import Boxed


def writes(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(1) * y


@pytest.mark.parametrize("options", [{}, {"device": "virtual"}, {"kernels": "inductor"}])
def test_what_may_run_calls_as_traced_does_not_keep_the_graph(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph of fx, with a fake tensor for each node, can take a hundred megabytes."""
    graphs = list[weakref.ref[GraphModule]]()

    class Watched(ThisMachine):
        def runner(self, gm: GraphModule, *others: Any) -> Boxed:
            graphs.append(weakref.ref(gm))
            return super().runner(gm, *others)

    monkeypatch.setattr("nimble_fx.backend.ThisMachine", Watched)
    compiled = torch.compile(writes, backend="nimble", options=options)
    assert torch.equal(compiled(torch.zeros(3), torch.ones(3)), torch.ones(3))
    gc.collect()
    assert [graph() for graph in graphs] == [None]
    x = torch.zeros(3)
    with pytest.warns(UserWarning, match="share memory"):
        assert torch.equal(compiled(x, x.view(3)), torch.ones(3))
